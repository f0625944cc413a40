"""The routes of files and batches."""

from fastapi import APIRouter

from cluster.api.requests.body import Bodies
from cluster.api.routes.batch import batches as of_batches
from cluster.api.routes.batch import files as of_files
from cluster.api.routes.batch.uploads import Uploads
from cluster.api.service import Batches


def add_routes(router: APIRouter, batches: Batches, bodies: Bodies) -> None:
    of_files.add_routes(router, batches, Uploads())
    of_batches.add_routes(router, batches, bodies)
