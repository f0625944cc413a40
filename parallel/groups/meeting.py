"""The key-value store by which ranks find each other before they have a group."""

import socket
import threading
import time
from datetime import timedelta
from typing import Protocol, cast

from torch._C._distributed_c10d import (
    PrefixStore as PrefixStore,  # and for modules that may not import torch.distributed
)
from torch._C._distributed_c10d import Store as Store
from torch._C._distributed_c10d import TCPStore as TCPStore

from parallel.errors import GroupError

POLL_SECONDS = 0.002


class Meeting(Protocol):
    """Two methods of torch.distributed's stores."""

    def set(self, key: str, value: str | bytes) -> None: ...

    def get(self, key: str) -> bytes:
        """Waits until it is set."""


class AbortableStore:
    """A store whose `get` can be aborted: torch's own waits until its time limit."""

    def __init__(self, store: Store, aborted: threading.Event, timeout: timedelta) -> None:
        self._store = store
        self._aborted = aborted
        self._timeout = timeout

    def under(self, prefix: str) -> "AbortableStore":
        return AbortableStore(PrefixStore(prefix, self._store), self._aborted, self._timeout)

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(key, cast(str, value))  # bytes too, which its type annotation lacks

    def get(self, key: str) -> bytes:
        """Raises GroupError."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        try:
            while not self._store.check([key]):
                if self._aborted.wait(POLL_SECONDS) or time.monotonic() > deadline:
                    raise GroupError(f"not all ranks have come: {key} is not set")
            return bytes(self._store.get(key))
        except GroupError:
            raise
        except RuntimeError as error:
            raise GroupError(f"the meeting point is gone: {error}") from error


def open_store(host: str, port: int, is_master: bool, timeout: timedelta) -> TCPStore:
    """The meeting point at host:port; rank 0 is its master and keeps it as long as the groups
    live.
    """
    try:
        if not is_master:
            return TCPStore(host, port, timeout=timeout, wait_for_workers=False)
        # A listener of our own: the store's would listen on every address of the machine.
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        port = listener.getsockname()[1]
        return TCPStore(
            host, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listener.detach()
        )
    except (RuntimeError, OSError) as error:
        raise GroupError(f"no meeting point at {host}:{port}: {error}") from error
