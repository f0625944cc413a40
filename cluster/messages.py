"""The messages of the step channel, and their form on the wire: a msgpack header, then the arrays' bytes as they are.

Any dataclass of ints, strings, bools, numpy arrays and such dataclasses can be a message; `_MESSAGES` names those that are. The
header is [class name, fields in order], an array in it [dtype code, *shape]. Nothing on the wire is ever executed.
"""

import dataclasses
import struct
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from cluster.channel import ChannelError
from engine.outputs import SamplerOutput
from engine.request import ExecuteModelRequest


@dataclass(frozen=True, slots=True)
class StepDone:
    """A rank that has no output of its own has done a step."""

    epoch: int
    step: int
    execute_ns: int


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step raised on a rank. `is_collective`: in a collective, so that it may be another rank's death that shows here."""

    epoch: int
    step: int
    reason: str
    is_collective: bool


Message = ExecuteModelRequest | SamplerOutput | StepDone | StepFailed

_MESSAGES = {kind.__name__: kind for kind in Message.__args__}
_DTYPES = dict(enumerate(np.dtype(kind) for kind in (np.int32, np.float32, np.int64, np.uint64, np.bool_)))
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_HEADER_LENGTH = struct.Struct("<I")
_ALIGNMENT = 8
_PADDINGS = [bytes(length) for length in range(_ALIGNMENT)]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def encode(message: Message) -> bytes:
    """The frame of a message."""
    pieces = [b"", b"", b""]  # the header's length, the header, and padding: known once the arrays are
    header = _encoder.encode([type(message).__name__, _flatten(message, pieces)])
    pieces[:3] = _HEADER_LENGTH.pack(len(header)), header, _PADDINGS[-(_HEADER_LENGTH.size + len(header)) % _ALIGNMENT]
    return b"".join(pieces)


def decode(frame: bytearray) -> Message:
    """The message of a frame; its arrays are views of the frame, and writable. Raises ChannelError."""
    try:
        (length,) = _HEADER_LENGTH.unpack_from(frame)
        start = _HEADER_LENGTH.size + length
        name, values = _decoder.decode(memoryview(frame)[_HEADER_LENGTH.size : start])
        message, end = _build(_MESSAGES[name], values, frame, start + -start % _ALIGNMENT)
    except (struct.error, msgspec.DecodeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ChannelError(f"malformed frame of {len(frame)} bytes: {type(error).__name__}: {error}") from None
    if end != len(frame):
        raise ChannelError(f"malformed {name} of {len(frame)} bytes: its arrays end at {end}")
    return cast(Message, message)


class _Field(NamedTuple):
    name: str
    kind: Any
    is_array: bool
    is_nested: bool


@cache
def _fields(kind: Hashable) -> list[_Field]:
    return [
        _Field(field.name, field.type, field.type is np.ndarray, dataclasses.is_dataclass(field.type))
        for field in dataclasses.fields(cast(Any, kind))
    ]


def _flatten(message: Any, pieces: list[bytes]) -> list[Any]:
    """Field values for the header; appends the bytes of the arrays among them, padded, to `pieces`."""
    values: list[Any] = []
    kind: Any = type(message)
    for name, _, is_array, is_nested in _fields(kind):
        value = getattr(message, name)
        if is_array:
            values.append((_CODES[value.dtype], *value.shape))
            pieces += (value.tobytes(), _PADDINGS[-value.nbytes % _ALIGNMENT])
        else:
            values.append(_flatten(value, pieces) if is_nested else value)
    return values


def _build(kind: Any, values: list[Any], frame: bytearray, offset: int) -> tuple[Any, int]:
    """A `kind` from its header values and the arrays at `offset` of the frame, and the offset after them."""
    arguments: list[Any] = []
    for (name, wanted, is_array, is_nested), value in zip(_fields(kind), values, strict=True):
        if is_array:
            # Raises if the shape is negative or reaches beyond the frame.
            array: np.ndarray = np.ndarray(value[1:], _DTYPES[value[0]], frame, offset)
            arguments.append(array)
            offset += array.nbytes + -array.nbytes % _ALIGNMENT
        elif is_nested:
            part, offset = _build(wanted, value, frame, offset)
            arguments.append(part)
        elif type(value) is wanted:
            arguments.append(value)
        else:
            raise TypeError(f"{kind.__name__}.{name} is {type(value).__name__}, not {wanted.__name__}")
    return kind(*arguments), offset
