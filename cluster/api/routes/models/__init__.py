"""/v1/models, and what changes the adapters that it lists."""

from fastapi import APIRouter

from cluster.api.model import Model
from cluster.api.requests.body import Bodies
from cluster.api.routes.models import adapters, listing
from cluster.api.service import AdapterLoader


def add_routes(router: APIRouter, model: Model, loader: AdapterLoader | None, bodies: Bodies) -> None:
    listing.add_routes(router, model)
    if loader is not None:
        adapters.add_routes(router, loader, bodies)
