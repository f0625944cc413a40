"""The HTTP application: its routes, and what stands before and behind all of them."""

from fastapi import FastAPI

from cluster.api.edge.hosts import ANY
from cluster.api.edge.middleware import Edge
from cluster.api.errors import HANDLERS
from cluster.api.model import Model
from cluster.api.requests.body import Bodies
from cluster.api.requests.read import Reader
from cluster.api.responses.resume import Resumable
from cluster.api.responses.streams import StreamStore
from cluster.api.routes import about, debug, generation, health, models
from cluster.api.service import Service


def build(
    service: Service,
    model: Model,
    *,
    api_keys: tuple[str, ...] = (),
    allowed_hosts: tuple[str, ...] = (ANY,),
    streams: StreamStore | None = None,
    strict_fields: bool = False,
    bodies: Bodies | None = None,
) -> FastAPI:
    """The application that answers with what `service` generates.

    Without `api_keys` everybody may ask. With `streams` a client may come back to a stream that
    broke (`resume`). With `strict_fields` a field that nobody knows is refused; else it is ignored,
    and the answer says so. `bodies` has other limits than the usual ones.
    """
    app = FastAPI(openapi_url=None, redirect_slashes=False, exception_handlers=HANDLERS)
    app.add_middleware(Edge, api_keys=api_keys, allowed_hosts=allowed_hosts)
    generation.add_routes(
        app.router,
        service,
        model,
        bodies or Bodies(),
        Reader(model, strict_fields=strict_fields),
        Resumable(service, model, streams),
    )
    models.add_routes(app.router, model)
    health.add_routes(app.router, service)
    debug.add_routes(app.router, service)
    about.add_routes(app.router, needs_key=bool(api_keys), has_streams=streams is not None)
    return app
