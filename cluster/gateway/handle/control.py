"""What trainers call, with plain dicts both ways.

    handle.update_weights.remote({"path": "/checkpoints/step-7", "version": "step-7"}).result()
    handle.update_weights.remote({"weights": {name: ray.put(tensor), ...}}).result()
    handle.update_weights.remote({"tensors": {name: {"dtype": "bfloat16", "shape": [8]}}}).result()

A request of `update_weights` is a dict with the keys

    path          absolute path of a folder with a checkpoint of the model, the same on every node
    weights       or, in its place, {name: ObjectRef}: whole tensors (torch or numpy, on the CPU) by
                  the names that the model's checkpoint has
    tensors       or those that the caller is going to broadcast, in this order, as rank 0 of the
                  group `group_name`: {name: {"dtype", "shape"}}, each with "sha256", the digest of
                  its bytes, if that is to be checked
    group_name    str; default: "weights"
    version       str, which answers carry; default: the number of the change
    mode          what becomes of the requests that run: "wait" until they have ended (default),
                  "abort" them with what they have, or "keep" them: they go on with the tokens that
                  they have, by the new weights
    model         str; default: the first one

and its answer, once every rank of every engine replica has the weights, has

    weights_version, system_fingerprint    as answers to requests have them from then on
    num_replicas  int
    error         None, or {"message", "type", "param", "code"}: then nothing has changed

`init_weights_update_group` makes such a group of the caller and of one receiver on each node that
has ranks of the model. It takes {"master_address", "master_port"} of the caller's `TCPStore`,
"group_name", "backend" ("gloo", the default, or "nccl"), "timeout" (seconds for each broadcast,
default 300) and "model", and answers {"world_size", "error"} before the group is whole: the caller
is to join as rank 0 of `world_size`, below the prefix `group_name` of the store.
`destroy_weights_update_group` takes {"group_name", "model"}, and answers {"error"}.

`pause` takes {"mode", "model"}, `resume` {"model"}, `sleep` {"level", "mode", "model"}, `wake_up`
{"tags", "model"}; each answers {"error"}. `control_state` answers {"is_paused", "is_sleeping"}. A
request for a model that has none of these names is refused.
"""

import asyncio
from contextlib import suppress
from typing import Any

from cluster.api.errors import ApiError, as_api_error
from cluster.api.models.controls import Control
from cluster.api.models.model import Models
from cluster.api.requests.sampling import find_model
from cluster.gateway.engines.changes import Changes
from cluster.gateway.handle.asked_weights import read_weights
from cluster.gateway.handle.groups import has_closed_group, read_meeting, read_name
from engine.errors import InvalidRequest, SquadronError
from engine.frontend.intermission import check_level, check_mode, check_tags

_FIELDS = {
    "update_weights": ("path", "weights", "tensors", "group_name", "version", "mode", "model"),
    "init_weights_update_group": ("master_address", "master_port", "group_name", "backend", "timeout", "model"),
    "destroy_weights_update_group": ("group_name", "model"),
    "pause": ("mode", "model"),
    "resume": ("model",),
    "sleep": ("level", "mode", "model"),
    "wake_up": ("tags", "model"),
    "control_state": ("model",),
}


async def update_weights(models: Models, request: Any) -> dict[str, Any]:
    """Ends what it has begun, whether or not its caller still waits."""
    return await asyncio.shield(_update_weights(models, request))


async def _update_weights(models: Models, request: Any) -> dict[str, Any]:
    try:
        changes = _changes(models, "update_weights", request)
        fields = request or {}
        told = await changes.update(read_weights(fields), fields.get("mode", "wait"))
    except (SquadronError, ApiError) as error:
        if not has_closed_group(error):
            await _close_group(models, request)
        return {"weights_version": None, "system_fingerprint": None, "num_replicas": 0, "error": _told(error)}
    return told | {"error": None}


async def _close_group(models: Models, request: Any) -> None:
    """Of an update that has failed, unless the group has: a trainer that has begun to broadcast
    would wait for those that receive.
    """
    if isinstance(request, dict) and "tensors" in request:
        with suppress(SquadronError, ApiError):
            await _controller(models, request).close_group(read_name(request))


async def init_group(models: Models, request: Any) -> dict[str, Any]:
    try:
        changes = _changes(models, "init_weights_update_group", request)
        size = await asyncio.shield(changes.open_group(read_meeting(request or {})))
    except (SquadronError, ApiError) as error:
        return {"world_size": 0, "error": _told(error)}
    return {"world_size": size, "error": None}


async def destroy_group(models: Models, request: Any) -> dict[str, Any]:
    try:
        changes = _changes(models, "destroy_weights_update_group", request)
        await changes.close_group(read_name(request or {}))
    except (SquadronError, ApiError) as error:
        return {"error": _told(error)}
    return {"error": None}


async def control(models: Models, what: Control, request: Any) -> dict[str, Any]:
    try:
        await _changes(models, what, request).control(what, *_arguments(what, request or {}))
    except (SquadronError, ApiError) as error:
        return {"error": _told(error)}
    return {"error": None}


async def control_state(models: Models, request: Any) -> dict[str, Any]:
    try:
        return await _changes(models, "control_state", request).state() | {"error": None}
    except (SquadronError, ApiError) as error:
        return {"error": _told(error)}


def _changes(models: Models, method: str, request: Any) -> Changes:
    """Those of the model that the request is for. Raises InvalidRequest, ApiError."""
    fields = {} if request is None else request
    if not isinstance(fields, dict):
        raise InvalidRequest(f"a request is a dict, got {type(request).__name__}", code="invalid_type")
    for name in fields:
        if name not in _FIELDS[method]:
            known = ", ".join(_FIELDS[method])
            raise InvalidRequest(
                f"unknown field {name!r}; there are {known}", param=str(name), code="unknown_parameter"
            )
    check_mode(fields.get("mode", "wait"))
    check_level(fields.get("level", 1))
    tags = fields.get("tags")
    if tags is not None and not isinstance(tags, (list, tuple)):
        raise InvalidRequest(f"tags is a list, got {type(tags).__name__}", param="tags", code="invalid_type")
    check_tags(tags)
    return _controller(models, fields)


def _controller(models: Models, fields: dict[str, Any]) -> Changes:
    """Of the model that is named, which has to be one. Raises InvalidRequest, ApiError."""
    name = fields.get("model")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"model is a text, got {type(name).__name__}", param="model", code="invalid_type")
    shares = models.aliases[name].shares if name in models.aliases else ()
    if len(shares) > 1:
        meant = ", ".join(model for model, _ in shares)
        raise InvalidRequest(f"model={name!r} is an alias of several models; name one of {meant}", param="model")
    model = find_model(fields, models)
    if model.adapter(name) is not None:
        message = f"model={name!r} is an adapter of {model.name}, whose engines have others, too; name that"
        raise InvalidRequest(message, param="model")
    controller = models[model.name].controller
    assert isinstance(controller, Changes)
    return controller


def _told(error: Exception) -> dict[str, Any]:
    told = as_api_error(error)
    return {"message": told.message, "type": told.type, "param": told.param, "code": told.code}


def _arguments(what: Control, fields: dict[str, Any]) -> tuple[Any, ...]:
    """Of a method of `engine.frontend.controls.Controls`."""
    match what:
        case "pause":
            return (fields.get("mode", "abort"),)
        case "sleep":
            return fields.get("level", 1), fields.get("mode", "abort")
        case "wake_up":
            return (fields.get("tags"),)
    return ()
