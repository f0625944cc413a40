"""Which weights a caller of `update_weights` asks for, read of a plain dict, and refused by the
field's name.
"""

from typing import Any

from ray import ObjectRef

from cluster.gateway.handle.groups import read_offer
from cluster.weights.asked import AskedWeights
from cluster.weights.objects import ObjectTensors
from engine.errors import InvalidRequest

MAX_VERSION = 128  # characters
SOURCES = ("path", "weights", "tensors")  # of a change


def read_weights(request: dict[str, Any]) -> AskedWeights:
    """Raises InvalidRequest."""
    version, given = request.get("version", ""), [name for name in SOURCES if request.get(name) is not None]
    if not isinstance(version, str) or len(version) > MAX_VERSION:
        raise InvalidRequest(f"version is a text of at most {MAX_VERSION} characters", param="version")
    if len(given) != 1:
        message = f"a change has one of {', '.join(SOURCES)}; this one has {', '.join(given) or 'none'}"
        raise InvalidRequest(message, param="path", code="missing_required_parameter")
    if given == ["tensors"]:
        return AskedWeights(version, offer=read_offer(request))
    if "group_name" in request:
        raise InvalidRequest("group_name is of tensors, which the group broadcasts", param="group_name")
    if given == ["weights"]:
        return AskedWeights(version, tensors=ObjectTensors(_refs(request["weights"])))
    path = request["path"]
    if not isinstance(path, str):
        raise InvalidRequest(f"path is a text, got {type(path).__name__}", param="path", code="invalid_type")
    return AskedWeights(version, path=path)


def _refs(refs: Any) -> "dict[str, ObjectRef[Any]]":
    """Raises InvalidRequest."""
    if not isinstance(refs, dict) or not refs:
        raise InvalidRequest("weights is a dict of ObjectRefs by name", param="weights", code="invalid_type")
    for name, ref in refs.items():
        if not isinstance(name, str) or not isinstance(ref, ObjectRef):
            message = f"weights[{name!r}] is {type(ref).__name__}; it is to be an ObjectRef, as ray.put returns"
            raise InvalidRequest(message, param="weights", code="invalid_type")
    return refs
