"""The HTTP application: its routes, and what all of them have in common."""

from fastapi import FastAPI

from cluster.api.dialects.responses_api.store import ResponseStore
from cluster.api.errors import HANDLERS
from cluster.api.front.guards import guard
from cluster.api.models.model import Models
from cluster.api.options import HttpOptions
from cluster.api.requests.body import Bodies
from cluster.api.responses.resuming.streams import LetIn, StreamStore
from cluster.api.routes import (
    about,
    batch,
    control,
    debug,
    generation,
    health,
    incoming,
    metrics,
    naming,
    outgoing,
    page,
    pooled,
)
from cluster.api.routes.dialects import messages, responses, tokens
from cluster.api.service import Application, Batches, WorkerKiller
from cluster.metrics.counters import Counters


def build(
    application: Application,
    models: Models,
    options: HttpOptions | None = None,
    *,
    streams: StreamStore | None = None,
    kept: ResponseStore | None = None,
    bodies: Bodies | None = None,
    counters: Counters | None = None,
    batches: Batches | None = None,
    killer: WorkerKiller | None = None,
) -> FastAPI:
    """The HTTP side of an application, which answers with what its `models` generate.

    With `streams` clients may resume broken streams (`resume`), with `kept` go on from stored
    responses. `bodies` overrides the default limits. Answers are counted in `counters`. With
    `batches` clients may keep files and have them answered. With a `killer` the page has a button
    that kills a worker. Its `state.early` are its `EarlyRefusals`.
    """
    options, bodies, counters = options or HttpOptions(), bodies or Bodies(), counters or Counters({})
    app = FastAPI(openapi_url=None, redirect_slashes=False, exception_handlers=HANDLERS)
    let_in = LetIn(application, models.max_model_len, streams)
    inward = incoming.Incoming(let_in, models, bodies, strict_fields=options.strict_fields)
    outward = outgoing.Outgoing(models, streams)
    generation.add_routes(app.router, inward, outward)
    pooled.add_routes(app.router, inward, outward)
    messages.add_routes(app.router, models, inward, outward)
    responses.add_routes(app.router, models, inward, outward, kept)
    tokens.add_routes(app.router, models, inward)
    naming.add_routes(app.router, models, bodies)
    health.add_routes(app.router, application)
    debug.add_routes(app.router, application, killer)
    metrics.add_routes(app.router, application)
    page.add_routes(app.router)
    if options.enable_sleep_mode:
        control.add_routes(app.router, models)
    if batches is not None:
        batch.add_routes(app.router, batches, bodies)
    about.add_routes(
        app.router,
        needs_key=bool(options.api_keys),
        has_streams=streams is not None,
        has_batches=batches is not None,
        has_loader=models.can_load,
        has_killer=killer is not None,
        has_controls=options.enable_sleep_mode,
    )
    limit, names, resumes = models.max_model_len, models.own_names, streams is not None
    app.state.early = guard(app, application, limit, names, options, counters, resumes=resumes)
    return app
