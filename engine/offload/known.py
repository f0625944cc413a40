"""What the folder of blocks, and those of engines on other nodes, are believed to hold. Being wrong
costs a read, never an answer.
"""

import threading
from collections.abc import Iterable

MAX_ELSEWHERE = 1 << 16  # blocks; then those that were told first are forgotten


class Known:
    """Written by the engine's thread and by `Upkeep`, each operation whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.contents: set[bytes] = set()  # content hashes
        self.to_remove: list[bytes] = []  # distrusted; their files are still to be removed
        # Content hashes, and the address of an engine that has stored them, perhaps on another
        # node: see `engine.offload.peers`. The engine's thread alone uses it.
        self._elsewhere: dict[bytes, str] = {}

    def listed(self, found: set[bytes], before: set[bytes]) -> None:
        """The folder held `found`, which is kept, at some time since `contents` was `before`; what
        was stored or distrusted meanwhile is known better here.
        """
        with self._lock:
            found |= self.contents - before
            found.difference_update(self.to_remove)
            self.contents = found

    def add(self, *contents: bytes) -> None:
        """They have been stored."""
        with self._lock:
            self.contents.update(contents)

    def expect(self, contents: Iterable[bytes], address: str | None) -> None:
        """Another engine is said to have stored these: in this folder, or, if it has an address,
        in one that it serves there.
        """
        if address is None:
            self.add(*contents)
            return
        for content in contents:
            self._elsewhere.pop(content, None)
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
        """Its numbers are wrong: have its files in this folder removed."""
        self._elsewhere.pop(content, None)
        with self._lock:
            if content in self.contents:
                self.contents.discard(content)
                self.to_remove.append(content)
