"""What a request says of itself before its body is read."""

from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from cluster.api.arrivals import estimated_load
from cluster.api.requests.validate import timeout_of
from cluster.headers.full_queue import LET_IN, REFUSED, num_refused
from engine.admission.queue_limits import Load
from engine.errors import InvalidRequest


class Known(NamedTuple):
    load: Load
    seconds: float | None  # for the answer
    num_refused: int  # by HAProxy, before it
    let_in: str  # see `LatestNumbers`


def known(scope: Scope, max_model_len: int) -> Known:
    """If the header of the seconds is wrong, there is none: the application says so."""
    headers = Headers(scope=scope)
    try:
        seconds = timeout_of(headers)
    except InvalidRequest:
        seconds = None
    load = estimated_load(headers, max_model_len)
    return Known(load, seconds, num_refused(headers.get(REFUSED, "")), headers.get(LET_IN, ""))
