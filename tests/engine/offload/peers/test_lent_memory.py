"""Parts of a block server's memory never overlap, and come back."""

import random
from contextlib import ExitStack

from engine.offload.peers.lent_memory import LentMemory
from engine.offload.peers.nixl_agent import Memory, NixlAgent

ADDRESS = 1 << 40


class Plain(NixlAgent):
    """Whose memory nobody else can read."""

    def __init__(self) -> None:
        pass

    def register(self, num_bytes: int) -> Memory:
        return Memory(ADDRESS, memoryview(bytearray(num_bytes)))

    @property
    def metadata(self) -> bytes:
        return b"nowhere"


def test_parts_do_not_overlap() -> None:
    memory, drawn = LentMemory(Plain(), 1000), random.Random(0)
    held: list[tuple[ExitStack, Memory]] = []
    num_refused = 0
    for number in range(2000):
        stack = ExitStack()
        part = stack.enter_context(memory.lent(drawn.randint(1, 300)))
        if part is None:
            num_refused += 1
        else:
            assert part.address >= ADDRESS and part.address + len(part.view) <= ADDRESS + 1000
            part.view[:] = bytes([number % 256]) * len(part.view)
            held.append((stack, part))
        while len(held) > 4 or (held and part is None):
            ended, gone = held.pop(drawn.randrange(len(held)))
            assert len(set(gone.view)) == 1, "another one has written there"
            ended.close()
            part = gone
    assert num_refused > 10
    for ended, _ in held:
        ended.close()
    with memory.lent(1000) as whole:
        assert whole is not None and whole.address == ADDRESS
        with memory.lent(1) as none:
            assert none is None


def test_what_is_larger_than_all_has_no_room() -> None:
    with LentMemory(Plain(), 1000).lent(1001) as part:
        assert part is None
