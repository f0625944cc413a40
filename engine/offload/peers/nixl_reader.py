"""A rank's end of NIXL: reads blocks from the memory of servers on other nodes.

A transfer that is late may still write to its memory. So memory is for blocks alone, is never given
back, and is used again only once its last transfer is over: what is late then meets nobody.
"""

import logging
import threading
import time
from functools import cache

from engine.offload.peers.nixl_agent import Memory, NixlAgent, NixlFailed, Reading

SECONDS = 1.0  # for a transfer, its connection included: what is late has as long to come over TCP
RETRY_SECONDS = 60.0  # after a transfer has failed or was late; until then the server's blocks come over TCP
POLL_SECONDS = 5e-5
MAX_MEMORIES = 16  # twice the threads that read, see `engine.worker.cache.readers`: some may wait for what is late
MAX_SERVERS = 64  # that are known at the same time

logger = logging.getLogger("squadron.offload")


class NixlReader:
    """From any thread."""

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent
        self._lock = threading.Lock()  # guards the rest
        self._names: dict[bytes, str] = {}  # of servers' agents, by metadata, the longest known first
        self._avoided: dict[str, float] = {}  # until when, in time.monotonic()
        self._num_bytes = 0  # of each memory
        self._num_memories = 0
        self._free: list[Memory] = []
        self._late: list[Reading] = []
        self._has_told = False

    def meet(self, metadata: bytes) -> str | None:
        """The name of the server's agent; None: its blocks come over TCP."""
        with self._lock:
            if metadata in self._names:
                return self._names[metadata]
            try:
                name = self._agent.meet(metadata)
            except NixlFailed as error:
                self._tell(str(error))
                return None
            self._names[metadata] = name
            if len(self._names) > MAX_SERVERS:
                oldest = self._names.pop(next(iter(self._names)))
                self._avoided.pop(oldest, None)
                self._agent.forget(oldest)
            return name

    def take(self, name: str, num_bytes: int) -> Memory | None:
        """Memory for one block of that server; None: it comes over TCP."""
        with self._lock:
            if self._avoided.get(name, 0.0) > time.monotonic():
                return None
            self._take_back()
            if name in self._avoided and not self._meets_again(name):
                return None
            self._num_bytes = self._num_bytes or num_bytes
            if num_bytes > self._num_bytes:
                return None
            if self._free:
                return self._free.pop()
            if self._num_memories == MAX_MEMORIES:
                return None
            self._num_memories += 1
            try:
                return self._agent.register(self._num_bytes)
            except NixlFailed as error:
                self._avoid(name, str(error))
                return None

    def give_back(self, memory: Memory) -> None:
        """That no transfer has been begun to, or whose is over."""
        with self._lock:
            self._free.append(memory)

    def read(self, memory: Memory, name: str, address: int, num_bytes: int, deadline: float) -> bytearray | None:
        """What is at this address of the server's, before `deadline` (time.monotonic); None: it did
        not come, and others of that server's go over TCP for a while. Gives the memory back.
        """
        try:
            reading = self._agent.begin_read(memory, name, address, num_bytes)
        except NixlFailed as error:
            self.give_back(memory)
            self._fail(name, str(error))
            return None
        until = min(deadline, time.monotonic() + SECONDS)
        while not reading.is_over:
            if time.monotonic() > until:
                with self._lock:
                    self._late.append(reading)
                self._fail(name, "a transfer is late")
                return None
            time.sleep(POLL_SECONDS)
        found = bytearray(memory.view[:num_bytes]) if reading.is_done else None
        with self._lock:
            self._late.append(reading)
            self._take_back()
        if found is None:
            self._fail(name, "a transfer has failed")
        return found

    def _meets_again(self, name: str) -> bool:
        """After a failure: where UCX's connection has failed, it stays so until the agent is
        forgotten; but not one that a late transfer may still use.
        """
        del self._avoided[name]
        metadata = next((told for told, known in self._names.items() if known == name), None)
        if metadata is None or any(late.name == name for late in self._late):
            return True
        self._agent.forget(name)
        try:
            self._agent.meet(metadata)
        except NixlFailed as error:
            self._avoid(name, str(error))
            return False
        return True

    def _take_back(self) -> None:
        """The memory of transfers that are over."""
        late, self._late = self._late, []
        for each in late:
            try:
                if each.is_over:
                    each.release()
                    self._free.append(each.memory)
                else:
                    self._late.append(each)
            except Exception as error:  # the library's own: nobody uses this memory again
                logger.debug("a transfer cannot be released: %s", error)

    def _fail(self, name: str, why: str) -> None:
        with self._lock:
            self._avoid(name, why)

    def _avoid(self, name: str, why: str) -> None:
        self._avoided[name] = time.monotonic() + RETRY_SECONDS
        self._tell(why)

    def _tell(self, why: str) -> None:
        if not self._has_told:
            logger.warning(
                "blocks of an engine come over TCP for now, and not by NIXL: %s (others are not logged)", why
            )
        self._has_told = True


@cache
def nixl_reader() -> NixlReader | None:
    """The process's own, for as long as it lives: UCX may abort where an agent ends after one of
    its connections has failed. None, which is logged, where NIXL cannot be used.
    """
    try:
        return NixlReader(NixlAgent())
    except NixlFailed as error:
        logger.warning("blocks come from other nodes over TCP, and not by NIXL: %s", error)
        return None
