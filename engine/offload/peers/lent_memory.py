"""Memory of a block server from which readers on other nodes read blocks by NIXL."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from engine.offload.peers.nixl_agent import Memory, NixlAgent, NixlFailed

NUM_BYTES = 64 << 20  # for all that is read at the same time; what finds no room goes over TCP

logger = logging.getLogger("squadron.offload")


class LentMemory:
    """Registered once, since the metadata names it, and divided by a list of what is lent. From any
    thread.
    """

    def __init__(self, agent: NixlAgent, num_bytes: int = NUM_BYTES) -> None:
        """Raises NixlFailed."""
        self._agent = agent
        self._memory = agent.register(num_bytes)
        self.metadata = agent.metadata
        self._lock = threading.Lock()  # guards the rest
        self._lent: list[tuple[int, int]] = []  # begin and end of each part, in order

    @contextmanager
    def lent(self, num_bytes: int) -> Iterator[Memory | None]:
        """A part of it, as long as that lasts; None: there is no room."""
        part = self._take(num_bytes)
        try:
            yield None if part is None else Memory(self._memory.address + part[0], self._memory.view[slice(*part)])
        finally:
            if part is not None:
                with self._lock:
                    self._lent.remove(part)

    def move_on(self) -> None:
        """Whoever waits for a reader does so, again and again. Raises OSError."""
        try:
            self._agent.move_on()
        except NixlFailed as error:
            raise ConnectionError(str(error)) from error

    def _take(self, num_bytes: int) -> tuple[int, int] | None:
        with self._lock:
            begin = 0
            for index, (lent_begin, lent_end) in enumerate([*self._lent, (len(self._memory.view), 0)]):
                if begin + num_bytes <= lent_begin:
                    part = (begin, begin + num_bytes)
                    self._lent.insert(index, part)
                    return part
                begin = lent_end
            return None


def lent_memory() -> LentMemory | None:
    """None, which is logged, where NIXL cannot be used."""
    try:
        return LentMemory(NixlAgent())
    except NixlFailed as error:
        logger.warning("blocks go to other nodes over TCP, and not by NIXL: %s", error)
        return None
