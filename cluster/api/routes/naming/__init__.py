"""/v1/models, and what changes the adapters that it lists."""

from fastapi import APIRouter

from cluster.api.models.model import Models
from cluster.api.requests.body import Bodies
from cluster.api.routes.naming import adapters, listing


def add_routes(router: APIRouter, models: Models, bodies: Bodies) -> None:
    listing.add_routes(router, models)
    if models.can_load:
        adapters.add_routes(router, models, bodies)
