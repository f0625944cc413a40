"""What the folder of blocks is believed to hold. Being wrong costs a read, never an answer."""

import threading


class Known:
    """Written by the engine's thread and by `Upkeep`, each operation whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.contents: set[bytes] = set()  # content hashes
        self.to_remove: list[bytes] = []  # distrusted; their files are still to be removed

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

    def forget(self, content: bytes) -> None:
        """It was not there, or damaged."""
        with self._lock:
            self.contents.discard(content)

    def distrust(self, content: bytes) -> None:
        """Its numbers are wrong: have its files removed."""
        with self._lock:
            if content in self.contents:
                self.contents.discard(content)
                self.to_remove.append(content)
