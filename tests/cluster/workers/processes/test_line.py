"""The words on a worker's line."""

import os
import threading

import pytest

from cluster.sockets.connection import ChannelError, Connection
from cluster.workers.processes.line import Abort, Look, Stopped, decode_word, encode_word, hold_line
from tests.cluster.sockets.descriptors import pair_beyond_select

SECONDS = 120


@pytest.mark.parametrize("word", [Abort(3), Look(17, 1234), Stopped(17, 1234)])
def test_a_word_comes_back_as_it_was(word: Abort | Look | Stopped) -> None:
    assert decode_word(bytearray(encode_word(word))) == word


@pytest.mark.parametrize("frame", [b"?", b"{}", b'{"type":"Abort"}', b'{"type":"Abort","epoch":"one"}', b"\xff"])
def test_what_is_no_word_is_a_breach(frame: bytes) -> None:
    with pytest.raises(ChannelError, match="not a word"):
        decode_word(bytearray(frame))


def test_a_worker_hears_whatever_the_descriptor_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    has_ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda status: has_ended.set())
    heard: list[int] = []
    with pair_beyond_select() as pair:
        ours, driver = (Connection(end) for end in pair)
        driver.send(encode_word(Abort(3)))
        hold_line(ours, lambda epoch: (heard.append(epoch), driver.end())[0])
        assert has_ended.wait(SECONDS)
    assert heard == [3]
