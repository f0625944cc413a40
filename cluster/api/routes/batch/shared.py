"""Shared by the routes of files and of batches: owners, and pages of lists."""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from cluster.api.batches import Batch, FileObject, Owner, Page
from cluster.api.errors import ApiError
from cluster.api.keys.limits import caller_of
from cluster.api.models.adapters import ADAPTER_PATHS
from cluster.api.models.controls import CONTROL_PATHS
from cluster.api.routes.answer import json_response

EVERYBODY = Owner("everybody", None)
MAX_PAGE = 10_000
NOT_ASKED = ("/v1/files", "/v1/batches", *ADAPTER_PATHS, *CONTROL_PATHS)  # by the lines of a batch


def owner_of(request: Request) -> Owner:
    """Known by the key itself, not by its name, which another key may be given later."""
    caller = caller_of(request.scope)
    return EVERYBODY if caller is None else Owner(caller.key.digest.hex(), caller.key.name)


def answer(value: Any) -> Response:
    return json_response(msgspec.json.encode(value))


def page(request: Request, items: Sequence[Batch] | Sequence[FileObject], default_limit: int) -> Response:
    """Some of the items, newest first, as the query says (`after`, `limit`, `order`). Raises
    ApiError.
    """
    query = request.query_params
    text = query.get("limit", str(default_limit))
    if not text.isdecimal() or len(text) > len(str(MAX_PAGE)) or not 1 <= int(text) <= MAX_PAGE:
        raise ApiError(400, f"limit={text[:16]!r} is not from 1 to {MAX_PAGE}", code="invalid_value", param="limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(400, f"order={order[:16]!r} is not asc or desc", code="invalid_value", param="order")
    found: list[Batch | FileObject] = list(items) if order == "desc" else list(reversed(items))
    after = query.get("after")
    if after is not None:
        places = [place for place, item in enumerate(found) if item.id == after]
        if not places:
            raise ApiError(400, f"after={after[:64]!r} is not in the list", code="invalid_value", param="after")
        found = found[places[0] + 1 :]
    shown = found[: int(text)]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return answer(Page(data=shown, first_id=first, last_id=last, has_more=len(shown) < len(found)))
