"""Which beginnings of prompts an engine's cache still has, by the names that routers have for them.

A router does not know tokens. It names a prompt's first piece, its first two, and so on, by digests
of the text (`Request.beginnings`). Where a piece ends among the tokens is estimated: a name stands
for the last full block before it. Once no tier has the block, routers are told that the beginning
is lost.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from engine.request import BYTES_PER_TOKEN, Request

NAME_BYTES = 8
PIECE_BYTES = 256  # of a prompt, between two names
ADAPTER_PIECES = 4  # the first names of a request with an adapter stand for that, and for no block
MAX_HELD = 65_536  # names, in some 20 MB; beyond them, those that were used the longest ago count as lost
MAX_TAKEN = 4_096  # names in a report
MAX_LOST = 65_536  # that wait to be told; the oldest are dropped, and cost a wrong guess each


class Blocks(Protocol):
    """The cache's, of all tiers of an engine's own."""

    block_size: int

    def holds(self, content: bytes) -> bool: ...


class Beginnings:
    """An engine's. The engine's thread alone calls all but `take` and `num_cleared`."""

    def __init__(self) -> None:
        self._in_use: Counter[bytes] = Counter()  # names that requests have which wait or run
        self._content_of: OrderedDict[bytes, bytes] = OrderedDict()  # by name; the last used at the end
        self._names_of: dict[bytes, set[bytes]] = {}  # by content
        self._removed: list[bytes] = []  # contents that a tier no longer has
        self._lost: deque[bytes] = deque(maxlen=MAX_LOST)
        self.num_cleared = 0  # how many times all was lost

    def __len__(self) -> int:
        return len(self._content_of)

    def begun(self, request: Request) -> None:
        """What it begins with is not lost while it runs: it will be computed."""
        self._in_use.update(names_of(request))

    def ended(self, request: Request, num_tokens: int, hashes: Sequence[bytes], blocks: Blocks) -> None:
        """`num_tokens`: of its prompt; `hashes`: of its blocks, as far as the index has them."""
        names = names_of(request)
        for name in names:
            self._in_use[name] -= 1
            if not self._in_use[name]:
                del self._in_use[name]
        last_blocks = list(_last_blocks(request, names, num_tokens, blocks.block_size))
        for name, index in reversed(last_blocks):  # so that shorter beginnings are lost last
            content = hashes[index] if index < len(hashes) else None
            if content is not None and blocks.holds(content):
                self._hold(name, content)
            elif content is not None or name not in self._content_of:  # it may have ended before it had hashes
                self._lose(name)
        while len(self._content_of) > MAX_HELD:
            self._lose(next(iter(self._content_of)))

    def removed(self, content: bytes) -> None:
        """A tier no longer has it."""
        if content in self._names_of:
            self._removed.append(content)

    def settle(self, blocks: Blocks) -> None:
        """Names of what was removed are lost, unless another tier has it."""
        for content in self._removed:
            if not blocks.holds(content):
                for name in list(self._names_of.get(content, ())):
                    self._lose(name)
        self._removed.clear()

    def cleared(self) -> None:
        """The workers' caches are gone: `num_cleared` tells it."""
        self._content_of.clear()
        self._names_of.clear()
        self._removed.clear()
        self._lost.clear()
        self.num_cleared += 1

    def take(self, most: int = MAX_TAKEN) -> bytes:
        """The names that were lost first and not told yet, one after the other, but for those that
        are in use or held again. In any thread.
        """
        taken: list[bytes] = []
        with suppress(IndexError):  # there are no more; the engine's thread may clear them meanwhile
            while len(taken) < most:
                name = self._lost.popleft()
                if name not in self._in_use and name not in self._content_of:
                    taken.append(name)
        return b"".join(taken)

    def _hold(self, name: bytes, content: bytes) -> None:
        if self._content_of.get(name) != content:
            self._forget(name)
            self._content_of[name] = content
            self._names_of.setdefault(content, set()).add(name)
        self._content_of.move_to_end(name)

    def _lose(self, name: bytes) -> None:
        self._forget(name)
        if name not in self._in_use:
            self._lost.append(name)

    def _forget(self, name: bytes) -> None:
        content = self._content_of.pop(name, None)
        if content is not None:
            names = self._names_of[content]
            names.discard(name)
            if not names:
                del self._names_of[content]


def names_of(request: Request) -> list[bytes]:
    """Its beginnings, but for those that stand for its adapter."""
    ends = range(NAME_BYTES, len(request.beginnings) + 1, NAME_BYTES)
    names = [request.beginnings[end - NAME_BYTES : end] for end in ends]
    return names if request.adapter is None else names[ADAPTER_PIECES:]


def _last_blocks(
    request: Request, names: Sequence[bytes], num_tokens: int, block_size: int
) -> Iterator[tuple[bytes, int]]:
    """For each name that has one, the last full block of its beginning, by its index. The last
    piece is cut short by half of one, on average; what lies behind all pieces has no names.
    """
    num_bytes = max((len(names) + 0.5) * PIECE_BYTES, request.estimated_tokens * BYTES_PER_TOKEN)
    last = (num_tokens - 1) // block_size - 1
    for number, name in enumerate(names, 1):
        index = min(int(num_tokens * number * PIECE_BYTES / num_bytes) // block_size - 1, last)
        if index >= 0:
            yield name, index
