"""Messages come back as they were, and no damage does more than change values."""

import dataclasses
import struct

import numpy as np
import pytest

from cluster.sockets.connection import ChannelError
from cluster.workers.steps.messages import StepDone, StepFailed, decode, encode
from engine.step import ExecuteModelRequest, StepMasks
from tests.engine.worker.steps import decode_step


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
    if dataclasses.is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in dataclasses.fields(left)
        )
    return left == right


@pytest.mark.parametrize("num_seqs", [0, 1, 33])
def test_step_comes_back_as_it_was(num_seqs: int) -> None:
    request = decode_step(7, num_seqs)
    decoded = decode(bytearray(encode(request)))
    assert same(decoded, request)


@pytest.mark.parametrize("words", [[], [-1, 0, 1 << 30]])
def test_masks_come_back_as_they_were(words: list[int]) -> None:
    masks = StepMasks(2, 7, np.array([0, len(words)], np.int32), np.array(words, np.int32))
    assert same(decode(bytearray(encode(masks))), masks)


def test_arrays_may_be_written_to() -> None:
    decoded = decode(bytearray(encode(decode_step(7, 2))))
    assert isinstance(decoded, ExecuteModelRequest)
    decoded.input_ids[0] = 5
    assert decoded.input_ids[0] == 5


def test_arrays_that_are_not_contiguous() -> None:
    request = dataclasses.replace(decode_step(7, 4), carried_rows=np.arange(8, dtype=np.int32).reshape(2, 4).T)
    assert same(decode(bytearray(encode(request))), request)


@pytest.mark.parametrize(
    "message",
    [StepDone(epoch=1, step=2, execute_ns=1 << 40), StepFailed(1, 2, "ValueError: ß", is_collective=True)],
)
def test_small_messages(message: StepDone | StepFailed) -> None:
    assert decode(bytearray(encode(message))) == message


def test_every_cut_is_refused() -> None:
    frame = encode(decode_step(7, 3))
    for length in range(0, len(frame), 8):
        with pytest.raises(ChannelError):
            decode(bytearray(frame[:length]))


def test_no_damage_does_more_than_change_values() -> None:
    request = decode_step(7, 3)
    frame = encode(request)
    random = np.random.default_rng(0)
    num_refused = 0
    for _ in range(2000):
        damaged = bytearray(frame)
        damaged[random.integers(len(frame))] = random.integers(256)
        try:
            decoded = decode(damaged)
        except ChannelError:
            num_refused += 1
            continue
        assert isinstance(decoded, ExecuteModelRequest)
    assert num_refused > 100


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        b"\x92\xa4Nope\x90",
        b"\x92\xa8StepDone\x93\x01\x02\xa13",
        b"\x92\xa8StepDone\x92\x01\x02",
        b"\x92\xa8StepDone\x93\x01\x02\xc3",
    ],
    ids=["empty", "not msgpack", "unknown message", "wrong type", "field missing", "bool for int"],
)
def test_headers_that_are_refused(header: bytes) -> None:
    frame = struct.pack("<I", len(header)) + header
    with pytest.raises(ChannelError, match="malformed"):
        decode(bytearray(frame + bytes(-len(frame) % 8)))
