"""What a trainer asks of the group in which it broadcasts weights, as plain dicts: read, and
refused by the field's name.
"""

import re
from typing import Any

from cluster.weights.groups.messages import DEVICES, Meeting, Offer, Offered
from cluster.weights.groups.update_groups import FAILED
from engine.errors import InvalidRequest

USUAL_NAME = "weights"
USUAL_SECONDS = 300.0
MAX_NAME = 64  # characters
_SHA256 = re.compile("[0-9a-fA-F]{64}")


def read_meeting(fields: dict[str, Any]) -> Meeting:
    """Raises InvalidRequest."""
    host, port = fields.get("master_address"), fields.get("master_port")
    if not isinstance(host, str) or not host:
        raise _wrong("master_address", host, "the host name or address of the trainer's TCPStore")
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise _wrong("master_port", port, "the port of the trainer's TCPStore")
    backend, seconds = fields.get("backend", "gloo"), fields.get("timeout", USUAL_SECONDS)
    if backend not in DEVICES:
        raise _wrong("backend", backend, f"one of {', '.join(DEVICES)}")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= 86_400:
        raise _wrong("timeout", seconds, "a number of seconds, 86400 at most")
    return Meeting(read_name(fields), host, port, backend, float(seconds))


def read_name(fields: dict[str, Any]) -> str:
    """Raises InvalidRequest."""
    name = fields.get("group_name", USUAL_NAME)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise _wrong("group_name", name, f"a text of 1 to {MAX_NAME} characters")
    return name


def read_offer(fields: dict[str, Any]) -> Offer:
    """Raises InvalidRequest."""
    tensors = fields.get("tensors")
    if not isinstance(tensors, dict) or not tensors:
        raise _wrong("tensors", tensors, "a dict by name, in the order of the broadcasts")
    return Offer(read_name(fields), {name: _offered(name, told) for name, told in tensors.items()})


def has_closed_group(error: Exception) -> bool:
    """Whether the group of an update that failed by this is closed: another may have its name."""
    return isinstance(error, InvalidRequest) and error.code == FAILED


def _offered(name: Any, told: Any) -> Offered:
    meant = '{"dtype": "bfloat16", "shape": [256, 128]}, perhaps with its bytes\' "sha256"'
    if not isinstance(name, str) or not isinstance(told, dict) or not {"dtype", "shape"} <= told.keys():
        raise _wrong(f"tensors[{name!r}]", told, meant)
    dtype, shape, digest = told["dtype"], told["shape"], told.get("sha256")
    is_shape = isinstance(shape, list | tuple) and all(type(size) is int and size >= 0 for size in shape)
    is_digest = digest is None or (isinstance(digest, str) and _SHA256.fullmatch(digest))
    if told.keys() - {"dtype", "shape", "sha256"} or not isinstance(dtype, str) or not is_shape or not is_digest:
        raise _wrong(f"tensors[{name!r}]", told, meant)
    return Offered(dtype.removeprefix("torch."), tuple(shape), digest)


def _wrong(field: str, value: Any, meant: str) -> InvalidRequest:
    return InvalidRequest(f"{field}={value!r:.100}: it is to be {meant}", param=field.partition("[")[0])
