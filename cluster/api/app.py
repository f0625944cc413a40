"""The HTTP application: its routes, and what all of them have in common."""

from fastapi import FastAPI

from cluster.api.edge.counting import Counting
from cluster.api.edge.hosts import ANY
from cluster.api.edge.middleware import Edge
from cluster.api.edge.origins import allow_origins
from cluster.api.errors import HANDLERS
from cluster.api.keys.key_ring import KeyRing
from cluster.api.model import Model
from cluster.api.requests.body import Bodies
from cluster.api.requests.read import Reader
from cluster.api.responses.resume import Resumable
from cluster.api.responses.streams import StreamStore
from cluster.api.routes import about, debug, generation, health, metrics, models
from cluster.api.service import Service
from cluster.metrics.counters import Counters


def build(
    service: Service,
    model: Model,
    *,
    api_keys: KeyRing | None = None,
    allowed_hosts: tuple[str, ...] = (ANY,),
    allowed_origins: tuple[str, ...] = (),
    num_gateways: int = 1,
    streams: StreamStore | None = None,
    strict_fields: bool = False,
    bodies: Bodies | None = None,
    counters: Counters | None = None,
    open_metrics: bool = False,
) -> FastAPI:
    """The application that answers with what `service` generates.

    Without `api_keys` no key is needed; their limits are those of `num_gateways` together. With
    `streams` clients may resume broken streams (`resume`). With `strict_fields` unknown fields are
    rejected; otherwise they are ignored, and the answer says so. `bodies` overrides the default
    limits. Answers are counted in `counters`. With `open_metrics` everybody may read /metrics.
    """
    app = FastAPI(openapi_url=None, redirect_slashes=False, exception_handlers=HANDLERS)
    keys = api_keys or KeyRing()
    app.add_middleware(
        Edge, api_keys=keys, allowed_hosts=allowed_hosts, open_metrics=open_metrics, num_gateways=num_gateways
    )
    allow_origins(app, allowed_origins)
    app.add_middleware(Counting, counters=counters or Counters({}), router=app.router)
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
    metrics.add_routes(app.router, service)
    about.add_routes(app.router, needs_key=bool(keys), has_streams=streams is not None)
    return app
