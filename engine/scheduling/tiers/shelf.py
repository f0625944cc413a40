"""The third tier: blocks that the host has are also written to files, and read from there when a
prompt wants them.

Files are written and read beside the steps, by the ranks, each its own part of a block. A block
that was read counts as found once all ranks have it; if one of them has not, it is computed.
"""

import math
import time
from collections import deque
from collections.abc import Collection, Iterable

from engine.config import STORES_A_STEP
from engine.offload.known import Known
from engine.scheduling.block_pool import BlockPool

FETCHES_IN_FLIGHT = 256  # blocks
FETCH_SECONDS = 10.0  # without any answer, after which what is missing is computed
# A block is copied by a step and stored by one that comes so much later that nobody waits for it.
STEPS_BEFORE_STORE = 2

Transfers = list[tuple[int, bytes]]  # (host block, content)


class Shelf:
    """One epoch's. `host` is the second tier's pool; `known`, which outlives it, is what files
    there are; `seconds`: for which it is wanted.
    """

    def __init__(
        self, host: BlockPool, known: Known, stores_a_step: int = STORES_A_STEP, seconds: float = math.inf
    ) -> None:
        self._host = host
        self._known = known
        self._stores_a_step = stores_a_step
        self._until = time.monotonic() + seconds
        self._num_steps = 0  # that were planned
        self._saved: deque[tuple[int, int, bytes]] = deque()  # (step, host block, content), the newest last
        self._fetching: dict[bytes, int] = {}  # content -> host block, which is held for it
        self._awaited_since = 0.0  # seconds of time.monotonic(): the last answer, or what was fetched first after it
        self._new_fetches: Transfers = []
        self._num_answers: dict[int, int] = {}  # host block -> ranks that have read it
        self._failed: set[int] = set()  # host blocks that some rank has not read
        self._brought: dict[int, bytes] = {}  # host block -> content, read and not used yet
        self.num_stored = 0  # blocks
        self.num_fetched = 0
        self.num_missed = 0  # believed to be there, and were not, or damaged

    @property
    def num_fetching(self) -> int:
        return len(self._fetching)

    @property
    def is_late(self) -> bool:
        """Whether ranks read, and nothing has come for long, as from a filesystem that hangs. What
        they read into stays held.
        """
        return bool(self._fetching) and time.monotonic() - self._awaited_since > FETCH_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether nothing is wanted of it any more."""
        return time.monotonic() > self._until and not self._fetching

    @property
    def has_new_fetches(self) -> bool:
        return bool(self._new_fetches)

    @property
    def has_unstored(self) -> bool:
        return bool(self._saved)

    @property
    def num_unstored(self) -> int:
        return len(self._saved)

    def want(self, seconds: float) -> None:
        """That long from now on, at least."""
        self._until = max(self._until, time.monotonic() + seconds)

    def forget(self) -> None:
        """Nothing is there any more."""
        self._known.clear()

    def leave(self, stores_a_step: int, *, apart: bool) -> None:
        """From now on store so many blocks a step. `apart`: in a new folder, of which nothing is
        read here, and not in that of before.
        """
        self._stores_a_step, self._until = stores_a_step, math.inf
        if apart:
            self._known = Known()

    def saved(self, slot: int, content: bytes) -> None:
        """The step being planned copies this content to the host."""
        if self._known.lacks(content):
            self._saved.append((self._num_steps, slot, content))

    def take_transfers(self, written: Collection[int] = ()) -> tuple[Transfers, Transfers]:
        """What the step being planned stores and fetches, before it moves any blocks; `written`:
        the host blocks that it moves to.
        """
        stored: Transfers = []
        last = self._num_steps - STEPS_BEFORE_STORE
        while self._saved and self._saved[0][0] <= last and len(stored) < self._stores_a_step:
            _, slot, content = self._saved.popleft()
            if slot in written:  # until then it may hold another's
                self._saved.append((self._num_steps, slot, content))
            elif self._host.content_of(slot) == content and self._known.lacks(content):
                stored.append((slot, content))
                self._known.add(content)
        self._num_steps += 1
        self.num_stored += len(stored)
        fetched, self._new_fetches = self._new_fetches, []
        return stored, fetched

    def has(self, content: bytes) -> bool:
        """As far as is known."""
        return self._known.has(content)

    def is_fetching(self, content: bytes) -> bool:
        """And there is hope."""
        return content in self._fetching and not self.is_late

    def expect(self, contents: Iterable[bytes], address: str | None = None) -> None:
        """Another engine is said to have stored these; `address`: where it serves them."""
        self._known.expect(contents, address)

    def addresses_of(self, fetched: Transfers) -> list[str]:
        """Who serves each of them if the folder has it not; none at all if nobody serves any."""
        addresses = [self._known.address_of(content) for _, content in fetched]
        return addresses if any(addresses) else []

    def fetch(self, content: bytes) -> bool:
        """Have a block read that the host has not; False if there is none, no room for it, or no
        hope.
        """
        if self.is_late:
            return False
        if content in self._fetching:
            return True
        if not self._known.has(content) or not self._has_room:
            return False
        slot = self._host.allocate()
        if not self._fetching:
            self._awaited_since = time.monotonic()
        self._fetching[content] = slot
        self._new_fetches.append((slot, content))
        return True

    @property
    def _has_room(self) -> bool:
        """For one more that is fetched."""
        return self._host.num_free > self._host.num_usable // 2 and len(self._fetching) < FETCHES_IN_FLIGHT

    def may_fetch_later(self, content: bytes) -> bool:
        """Whether it may be there, and those that are being read have all the room."""
        return bool(self._fetching) and not self.is_late and self._known.has(content) and not self._has_room

    def answered(self, fetched: list[list[int]], num_ranks: int) -> None:
        """Ranks have read these host blocks, or not: [block, whether it is there] each."""
        self._awaited_since = time.monotonic()
        for slot, is_there in fetched:
            self._num_answers[slot] = self._num_answers.get(slot, 0) + 1
            if not is_there:
                self._failed.add(slot)
        contents = {slot: content for content, slot in self._fetching.items()}
        for slot in [slot for slot, count in self._num_answers.items() if count == num_ranks]:
            self._end(slot, contents[slot])

    def take_brought(self, slots: Iterable[int]) -> int:
        """How many of these host blocks have been read, and are used for the first time."""
        return sum([self._brought.pop(slot, None) == self._host.content_of(slot) for slot in slots])

    def distrust(self, content: bytes) -> None:
        """Its numbers are wrong."""
        self._known.distrust(content)
        if content in self._fetching:
            self._failed.add(self._fetching[content])

    def held(self) -> list[int]:
        """Host blocks that files are being read into."""
        return list(self._fetching.values())

    def _end(self, slot: int, content: bytes) -> None:
        del self._num_answers[slot]
        del self._fetching[content]
        if slot in self._failed:
            self._failed.discard(slot)
            self._known.forget(content)
            self.num_missed += 1
        else:
            self._host.register(slot, content)
            self._brought[slot] = content
            self.num_fetched += 1
        self._host.release(slot)
