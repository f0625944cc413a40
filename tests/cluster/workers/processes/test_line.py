"""The words on a worker's line."""

import pytest

from cluster.sockets.connection import ChannelError
from cluster.workers.processes.line import Abort, Look, Stopped, decode_word, encode_word


@pytest.mark.parametrize("word", [Abort(3), Look(17, 1234), Stopped(17, 1234)])
def test_a_word_comes_back_as_it_was(word: Abort | Look | Stopped) -> None:
    assert decode_word(bytearray(encode_word(word))) == word


@pytest.mark.parametrize("frame", [b"?", b"{}", b'{"type":"Abort"}', b'{"type":"Abort","epoch":"one"}', b"\xff"])
def test_what_is_no_word_is_a_breach(frame: bytes) -> None:
    with pytest.raises(ChannelError, match="not a word"):
        decode_word(bytearray(frame))
