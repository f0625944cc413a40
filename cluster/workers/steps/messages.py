"""The messages of the step channel, and their wire format: a msgpack header, then the arrays' bytes
as they are.

Any dataclass of ints, strings, bools, lists of them, numpy arrays and such dataclasses can be a
message. The header is [class name, the dtype codes of its arrays, their shapes, its other fields].
`StepDone`, the most frequent answer, is only its numbers after a header of length 0. Nothing on the
wire is ever executed.

Every rank of a node reads a header per step, with cold caches: hence one flat loop.
"""

import dataclasses
import struct
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, cast, get_origin

import msgspec
import numpy as np

from cluster.sockets.connection import ChannelError
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest, StepMasks


@dataclass(frozen=True, slots=True)
class StepDone:
    """A rank without an output of its own has finished a step."""

    epoch: int
    step: int
    execute_ns: int


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step raised on a rank. `is_collective`: in a collective, so that the cause may be another
    rank's death.
    """

    epoch: int
    step: int
    reason: str
    is_collective: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """Comes before a rank's answer to a step: see `SamplerOutput.fetched`."""

    epoch: int
    step: int
    fetched: np.ndarray  # [*, 2] int32


Message = ExecuteModelRequest | StepMasks | SamplerOutput | StepDone | StepFailed | Fetched

_DTYPES = [np.dtype(kind) for kind in (np.int32, np.float32, np.int64, np.uint64, np.bool_)]
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_EMPTY = [np.empty(0, dtype) for dtype in _DTYPES]  # of every message: they have no references to track
_HEADER_LENGTH = struct.Struct("<I")
_STEP_DONE = struct.Struct("<Iiqq")  # 0, epoch, step, execute_ns
_ALIGNMENT = 8
_PADDINGS = [bytes(length) for length in range(_ALIGNMENT)]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list)


class _Layout:
    """How a kind of message is flattened and rebuilt."""

    def __init__(self, kind: type) -> None:
        self.name = kind.__name__
        self._paths: list[str] = []
        self._types: list[Any] = []
        # (start, stop, dataclass), innermost first: values[start:stop] become one of it.
        self._folds: list[tuple[int, int, Any]] = []
        self._add(kind, "")
        is_array = [kind is np.ndarray for kind in self._types]
        self.num_arrays = sum(is_array)
        self.other_types = [kind for kind in self._types if kind is not np.ndarray]
        # The flat values are arrays first; this is each field's place among them, in field order.
        taken = sorted(range(len(is_array)), key=lambda index: not is_array[index])
        self.take = attrgetter(*(self._paths[index] for index in taken))
        self._in_order = itemgetter(*(taken.index(index) for index in range(len(taken))))

    def build(self, values: list[Any]) -> Message:
        """The reverse of `take`."""
        values = list(self._in_order(values))
        for start, stop, kind in self._folds:
            values[start:stop] = [kind(*values[start:stop])]
        return cast(Message, values[0])

    def _add(self, kind: Any, prefix: str) -> int:
        """Add a dataclass' fields, with those of nested dataclasses in their places; returns the
        number of its own.
        """
        start, count = len(self._types), 0
        for part in dataclasses.fields(kind):
            count += 1
            if dataclasses.is_dataclass(part.type):
                self._add(part.type, f"{prefix}{part.name}.")
            else:
                self._types.append(get_origin(part.type) or part.type)
                self._paths.append(prefix + part.name)
        self._folds.append((start, start + count, kind))
        return count


_LAYOUTS = {kind: _Layout(kind) for kind in Message.__args__ if kind is not StepDone}
_LAYOUTS_BY_NAME = {layout.name: layout for layout in _LAYOUTS.values()}


def encode(message: Message) -> bytes:
    """The frame of a message."""
    if type(message) is StepDone:
        return _STEP_DONE.pack(0, message.epoch, message.step, message.execute_ns)
    layout = _LAYOUTS[type(message)]
    values = layout.take(message)
    arrays = values[: layout.num_arrays]
    codes = bytes([_CODES[array.dtype] for array in arrays])
    shapes = [array.shape if array.ndim > 1 else len(array) for array in arrays]
    header = _encoder.encode([layout.name, codes, shapes, *values[layout.num_arrays :]])
    pieces = [_HEADER_LENGTH.pack(len(header)), header, _PADDINGS[-(_HEADER_LENGTH.size + len(header)) % _ALIGNMENT]]
    for array in arrays:
        if array.size:
            pieces.append(array.tobytes())
            pieces.append(_PADDINGS[-array.nbytes % _ALIGNMENT])
    return b"".join(pieces)


def decode(frame: bytearray) -> Message:
    """The message of a frame; its arrays are views of the frame, and writable. Raises
    ChannelError.
    """
    try:
        (length,) = _HEADER_LENGTH.unpack_from(frame)
        if length == 0:
            return StepDone(*_STEP_DONE.unpack(frame)[1:])
        start = _HEADER_LENGTH.size + length
        name, codes, shapes, *others = _decoder.decode(memoryview(frame)[_HEADER_LENGTH.size : start])
        layout = _LAYOUTS_BY_NAME[name]
        values, end = _view(codes, shapes, frame, start + -start % _ALIGNMENT)
        if len(values) != layout.num_arrays or [type(other) for other in others] != layout.other_types:
            raise TypeError(f"{len(values)} arrays and {others}, not {layout.num_arrays} and {layout.other_types}")
    except (struct.error, msgspec.DecodeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ChannelError(f"malformed frame of {len(frame)} bytes: {type(error).__name__}: {error}") from None
    if end != len(frame):
        raise ChannelError(f"malformed {name} of {len(frame)} bytes: its arrays end at {end}")
    return layout.build(values + others)


def _view(codes: bytes, shapes: list[Any], frame: bytearray, offset: int) -> tuple[list[Any], int]:
    """Arrays that begin at `offset` of the frame, and the offset after them."""
    arrays: list[Any] = []
    for code, shape in zip(codes, shapes, strict=True):
        if shape == 0:
            arrays.append(_EMPTY[code])
            continue
        # Raises if the shape is negative or reaches beyond the frame.
        array: np.ndarray = np.ndarray(shape, _DTYPES[code], frame, offset)
        arrays.append(array)
        offset += array.nbytes + -array.nbytes % _ALIGNMENT
    return arrays, offset
