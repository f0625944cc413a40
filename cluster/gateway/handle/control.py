"""What trainers call, with plain dicts both ways.

    handle.update_weights.remote({"path": "/checkpoints/step-7", "version": "step-7"}).result()
    handle.update_weights.remote({"weights": {name: ray.put(tensor), ...}}).result()

A request of `update_weights` is a dict with the keys

    path          absolute path of a folder with a checkpoint of the model, the same on every node
    weights       or, in its place, {name: ObjectRef}: whole tensors (torch or numpy, on the CPU) by
                  the names that the model's checkpoint has
    version       str, which answers carry; default: the number of the change
    mode          what becomes of the requests that run: "wait" until they have ended (default),
                  "abort" them with what they have, or "keep" them: they go on with the tokens that
                  they have, by the new weights
    model         str; default: the first one

and its answer, once every rank of every engine replica has the weights, has

    weights_version, system_fingerprint    as answers to requests have them from then on
    num_replicas  int
    error         None, or {"message", "type", "param", "code"}: then nothing has changed

`pause` takes {"mode", "model"}, `resume` {"model"}, `sleep` {"level", "mode", "model"}, `wake_up`
{"tags", "model"}; each answers {"error"}. `control_state` answers {"is_paused", "is_sleeping"}. A
request for a model that has none of these names is refused.
"""

import asyncio
from typing import Any

from ray import ObjectRef

from cluster.api.errors import ApiError, as_api_error
from cluster.api.models.controls import Control
from cluster.api.models.model import Models
from cluster.api.requests.sampling import find_model
from cluster.gateway.engines.changes import Changes
from cluster.weights.asked import AskedWeights
from engine.errors import InvalidRequest, SquadronError
from engine.frontend.intermission import check_level, check_mode, check_tags

_FIELDS = {
    "update_weights": ("path", "weights", "version", "mode", "model"),
    "pause": ("mode", "model"),
    "resume": ("model",),
    "sleep": ("level", "mode", "model"),
    "wake_up": ("tags", "model"),
    "control_state": ("model",),
}
MAX_VERSION = 128  # characters


async def update_weights(models: Models, request: Any) -> dict[str, Any]:
    """Ends what it has begun, whether or not its caller still waits."""
    return await asyncio.shield(_update_weights(models, request))


async def _update_weights(models: Models, request: Any) -> dict[str, Any]:
    try:
        changes = _changes(models, "update_weights", request)
        fields = request or {}
        told = await changes.update(_asked(fields), fields.get("mode", "wait"))
    except (SquadronError, ApiError) as error:
        return {"weights_version": None, "system_fingerprint": None, "num_replicas": 0, "error": _told(error)}
    return told | {"error": None}


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
    controller = models[find_model(fields, models).name].controller
    assert isinstance(controller, Changes)
    return controller


def _asked(request: dict[str, Any]) -> AskedWeights:
    """Raises InvalidRequest."""
    path, refs, version = request.get("path"), request.get("weights"), request.get("version", "")
    if not isinstance(version, str) or len(version) > MAX_VERSION:
        raise InvalidRequest(f"version is a text of at most {MAX_VERSION} characters", param="version")
    if (path is None) == (refs is None):
        raise InvalidRequest("a change has either path or weights", param="path", code="missing_required_parameter")
    if path is not None:
        if not isinstance(path, str):
            raise InvalidRequest(f"path is a text, got {type(path).__name__}", param="path", code="invalid_type")
        return AskedWeights(version, path=path)
    if not isinstance(refs, dict) or not refs:
        raise InvalidRequest("weights is a dict of ObjectRefs by name", param="weights", code="invalid_type")
    for name, ref in refs.items():
        if not isinstance(name, str) or not isinstance(ref, ObjectRef):
            message = f"weights[{name!r}] is {type(ref).__name__}; it is to be an ObjectRef, as ray.put returns"
            raise InvalidRequest(message, param="weights", code="invalid_type")
    return AskedWeights(version, refs=refs)


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
