"""What the folder of blocks, and those of engines on other nodes, are believed to hold. Being wrong
costs a read, never an answer.
"""

import threading
import time
from collections.abc import Iterable

MAX_ELSEWHERE = 1 << 16  # blocks; then those that were told first are forgotten
MAX_DISTRUSTED = 1 << 14  # likewise
DISTRUSTED_SECONDS = 3600.0  # after which no rank still writes what it had when the block was distrusted


class Known:
    """Written by the engine's thread and by `Upkeep`, each operation whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.contents: set[bytes] = set()  # content hashes
        # Content hashes, and when they were distrusted, in time.monotonic(); the oldest first. A
        # rank may write such a block later, so each of its files that is seen is removed.
        self._distrusted: dict[bytes, float] = {}
        # Content hashes, and the address of an engine that has stored them, perhaps on another
        # node: see `engine.offload.peers`. The engine's thread alone uses it.
        self._elsewhere: dict[bytes, str] = {}

    def listed(self, found: set[bytes], before: set[bytes]) -> None:
        """The folder held `found`, which is kept, at some time since `contents` was `before`; what
        was stored or distrusted meanwhile is known better here.
        """
        with self._lock:
            found |= self.contents - before
            self.contents = found.difference(self._distrusted)

    def add(self, *contents: bytes) -> None:
        """They have been stored; of those that are distrusted nothing is believed."""
        with self._lock:
            self.contents.update(content for content in contents if content not in self._distrusted)

    def lacks(self, content: bytes) -> bool:
        """Whether it should be stored."""
        return content not in self.contents and content not in self._distrusted

    def expect(self, contents: Iterable[bytes], address: str | None) -> None:
        """Another engine is said to have stored these: in this folder, or, if it has an address,
        in one that it serves there.
        """
        if address is None:
            self.add(*contents)
            return
        for content in contents:
            self._elsewhere.pop(content, None)
            if content not in self._distrusted:
                self._elsewhere[content] = address
        while len(self._elsewhere) > MAX_ELSEWHERE:
            del self._elsewhere[next(iter(self._elsewhere))]

    def has(self, content: bytes) -> bool:
        """Whether it may be read."""
        return content in self.contents or content in self._elsewhere

    def address_of(self, content: bytes) -> str:
        """Who serves it if it is not in the folder; empty: nobody."""
        return self._elsewhere.get(content, "")

    def forget(self, content: bytes) -> None:
        """It was not there, or damaged."""
        self._elsewhere.pop(content, None)
        with self._lock:
            self.contents.discard(content)

    def clear(self) -> None:
        """Nothing is there any more."""
        self._elsewhere.clear()
        with self._lock:
            self.contents.clear()

    def distrust(self, content: bytes) -> None:
        """Its numbers are wrong: have its files in this folder removed, and for long neither
        believe that there are any nor store it.
        """
        self._elsewhere.pop(content, None)
        with self._lock:
            self.contents.discard(content)
            self._distrusted.pop(content, None)
            self._distrusted[content] = time.monotonic()
            if len(self._distrusted) > MAX_DISTRUSTED:
                del self._distrusted[next(iter(self._distrusted))]

    def distrusted(self) -> set[bytes]:
        """Of which no file may stay."""
        with self._lock:
            since = time.monotonic() - DISTRUSTED_SECONDS
            self._distrusted = {content: when for content, when in self._distrusted.items() if when > since}
            return set(self._distrusted)
