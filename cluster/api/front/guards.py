"""Puts checks of hosts and keys, and counts of answers, in front of the routes."""

from typing import Any

from fastapi import FastAPI

from cluster.api.edge.counting import Counting, HttpCounts
from cluster.api.edge.middleware import Edge
from cluster.api.edge.origins import allowing
from cluster.api.front.early import EarlyRefusals, answer
from cluster.api.front.shares import Shares
from cluster.api.keys.limits import KeyLimits
from cluster.api.options import HttpOptions
from cluster.api.service import Application
from cluster.metrics.counters import Counters


def guard(
    app: FastAPI,
    application: Application,
    max_model_len: int,
    names: tuple[str, ...],
    options: HttpOptions,
    counters: Counters,
    *,
    resumes: bool,
) -> EarlyRefusals:
    """Put an application, which has all its routes, behind the checks and counts; returns what a
    server may ask before it asks the application. `resumes`: clients may resume streams.
    """
    origins = options.allowed_origins
    edge: dict[str, Any] = {
        "api_keys": options.api_keys,
        "allowed_hosts": options.allowed_hosts,
        "allowed_origins": origins,
        "open_metrics": options.open_metrics,
        "limits": KeyLimits(options.num_gateways),
    }
    counts = HttpCounts(counters, names, options.api_keys.names)
    counting: dict[str, Any] = {"counts": counts, "router": app.router}
    app.add_middleware(Edge, **edge)
    app.add_middleware(allowing, origins)
    app.add_middleware(Counting, **counting)
    guarded = Counting(allowing(Edge(answer, **edge), origins), **counting)
    shares, told = Shares(options.api_keys), {"resumes": resumes, "has_pages": bool(origins)}
    return EarlyRefusals(application, max_model_len, guarded, counts.refused_before, shares, **told)
