"""POST /sleep, /wake_up, /pause and /resume, GET /is_sleeping and /is_paused, with vLLM's names and
parameters; of all models, or of the one that `model` names.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.errors import ApiError
from cluster.api.models.controls import Control
from cluster.api.models.model import Models
from cluster.api.requests.fields import as_brief_json
from cluster.api.routes.answer import READ, json_response
from engine.errors import InvalidRequest
from engine.frontend.intermission import check_mode, check_tags


def add_routes(router: APIRouter, models: Models) -> None:
    @router.post("/sleep")
    async def sleep(request: Request) -> Response:
        level, mode = _level(request), _mode(request)
        return await _do(models, request, "sleep", level, mode, told={"status": "sleeping", "level": level})

    @router.post("/wake_up")
    async def wake_up(request: Request) -> Response:
        tags = check_tags(request.query_params.getlist("tags") or None)
        return await _do(models, request, "wake_up", tags, told={"status": "awake", "tags": list(tags)})

    @router.post("/pause")
    async def pause(request: Request) -> Response:
        return await _do(models, request, "pause", _mode(request), told={"status": "paused"})

    @router.post("/resume")
    async def resume(request: Request) -> Response:
        return await _do(models, request, "resume", told={"status": "resumed"})

    @router.api_route("/is_sleeping", methods=READ)
    async def is_sleeping(request: Request) -> Response:
        return await _state(models, request, "is_sleeping")

    @router.api_route("/is_paused", methods=READ)
    async def is_paused(request: Request) -> Response:
        return await _state(models, request, "is_paused")


async def _do(models: Models, request: Request, what: Control, *arguments: Any, told: dict[str, Any]) -> Response:
    """Those that have an engine do it first. Raises Unavailable for one that has had none yet."""
    there = {served.model.name for served in models}
    for name in sorted(_names(models, request), key=lambda name: name not in there):
        controller = models[name].controller
        if controller is not None:
            await controller.control(what, *arguments)
    return json_response(msgspec.json.encode(told))


async def _state(models: Models, request: Request, name: str) -> Response:
    """Of all that have an engine, or of the one that is named."""
    named = request.query_params.get("model")
    chosen = models if named is None else [models[each] for each in _names(models, request)]
    states = [await served.controller.state() for served in chosen if served.controller is not None]
    return json_response(msgspec.json.encode({name: any(state[name] for state in states)}))


def _names(models: Models, request: Request) -> Sequence[str]:
    """Of all models, or of the one that is named. Raises ApiError."""
    name = request.query_params.get("model")
    if name is None:
        return models.own_names
    if name not in models.own_names:
        raise ApiError(404, f"There is no model {as_brief_json(name)} here", code="model_not_found", param="model")
    return (name,)


def _mode(request: Request) -> str:
    """Raises InvalidRequest."""
    mode = request.query_params.get("mode", "abort")
    check_mode(mode)
    return mode


def _level(request: Request) -> int:
    """Raises InvalidRequest."""
    text = request.query_params.get("level", "1")
    if text not in ("1", "2"):
        raise InvalidRequest(f"level={text[:16]!r} is neither 1 nor 2", param="level")
    return int(text)
