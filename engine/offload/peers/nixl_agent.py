"""NIXL, imported only where it is used: memory that an agent of another process may read, and
transfers from there.

https://github.com/ai-dynamo/nixl. Its UCX backend takes RDMA where there is any, else TCP or, on
the same machine, shared memory.
"""

import ctypes
import importlib
import logging
import logging.config
import mmap
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

BACKEND = "UCX"
_IN_PROGRESS, _DONE = "PROC", "DONE"


class NixlFailed(Exception):
    """What the library says."""


class Memory(NamedTuple):
    """Host memory that an agent has registered, until it ends."""

    address: int
    view: memoryview


class NixlAgent:
    """An agent of this process. From any thread.

    It has no thread of its own, which would never sleep: who waits for a transfer moves it on, and
    so does, by `move_on`, who is read from.
    """

    def __init__(self) -> None:
        """Raises NixlFailed where the library is missing or cannot begin."""
        try:
            self._api = _imported()
            config = self._api.nixl_agent_config(
                enable_prog_thread=False,
                backends=[BACKEND],
                sync_mode=self._api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
            )
            self._agent: Any = self._api.nixl_agent(secrets.token_hex(16), config)
            if BACKEND not in self._agent.backends:
                raise NixlFailed(f"NIXL has no plugin {BACKEND}")
        except ImportError as error:
            raise NixlFailed(f"{error}: pip install 'squadron-serve[nixl]'") from None
        except Exception as error:  # the library's own are no others' subclasses
            raise NixlFailed(f"NIXL does not start: {error}") from error
        self._maps: list[mmap.mmap] = []  # after the agent, so that they outlive it

    def register(self, num_bytes: int) -> Memory:
        """New memory of so many bytes. Raises NixlFailed."""
        mapped = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self._maps.append(mapped)
        try:
            self._agent.register_memory([(address, num_bytes, 0, "")], "DRAM")
        except Exception as error:
            raise NixlFailed(f"{num_bytes} bytes cannot be registered: {error}") from error
        return Memory(address, memoryview(mapped))

    @property
    def metadata(self) -> bytes:
        """By which other agents find this one, and what it has registered so far."""
        return bytes(self._agent.get_agent_metadata())

    def meet(self, metadata: bytes) -> str:
        """The name of the agent with this metadata, which `read` can be from now on. Raises
        NixlFailed.
        """
        try:
            return str(self._agent.add_remote_agent(metadata).decode())
        except Exception as error:
            raise NixlFailed(f"its agent cannot be met: {error}") from error

    def forget(self, name: str) -> None:
        try:
            self._agent.remove_remote_agent(name)
        except Exception as error:  # nothing depends on it
            logging.getLogger("squadron.offload").debug("%s cannot be forgotten: %s", name, error)

    def begin_read(self, memory: Memory, name: str, address: int, num_bytes: int) -> "Reading":
        """Of so many bytes at that agent's `address`. Raises NixlFailed."""
        try:
            here = self._agent.get_xfer_descs([(memory.address, num_bytes, 0)], "DRAM")
            there = self._agent.get_xfer_descs([(address, num_bytes, 0)], "DRAM")
            handle = self._agent.initialize_xfer("READ", here, there, name)
            return Reading(self._agent, name, handle, memory)
        except Exception as error:
            raise NixlFailed(f"nothing can be read there: {error}") from error

    def move_on(self) -> None:
        """What others read here may need it."""
        try:
            self._agent.get_new_notifs()
        except Exception as error:
            raise NixlFailed(f"it does not go on: {error}") from error


class Reading:
    """A transfer from the agent of that name, which has begun. It may write to `memory` until
    `is_over`.
    """

    def __init__(self, agent: Any, name: str, handle: Any, memory: Memory) -> None:
        self.name = name
        self._agent, self._handle = agent, handle
        self.memory = memory  # after the handle, which it has to outlive
        self._state: str = _IN_PROGRESS
        self._look(lambda: agent.transfer(handle))

    @property
    def is_over(self) -> bool:
        """Looks, and moves it on."""
        if self._state == _IN_PROGRESS:
            self._look(lambda: self._agent.check_xfer_state(self._handle))
        return self._state != _IN_PROGRESS

    @property
    def is_done(self) -> bool:
        """Whether all bytes are there, once it is over."""
        return self._state == _DONE

    def release(self) -> None:
        """Once it is over."""
        self._agent.release_xfer_handle(self._handle)

    def _look(self, ask: Callable[[], str]) -> None:
        try:
            self._state = ask()
        except Exception:  # as for an agent that has ended
            self._state = "ERR"


def _imported() -> Any:
    """Its module. What it sets up for logging when it is imported is the whole process's: handlers
    that are not its own are closed, and errors in them hidden.
    """
    configure, raises = logging.config.dictConfig, logging.raiseExceptions
    logging.config.dictConfig = lambda config: None
    try:
        module = importlib.import_module("nixl._api")
    finally:
        logging.config.dictConfig, logging.raiseExceptions = configure, raises
    logging.getLogger("nixl").setLevel(logging.WARNING)
    return module
