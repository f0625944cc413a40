"""What a block server answers: the files of a folder, over the connection or by NIXL."""

import os
import select
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from io import FileIO
from pathlib import Path

from engine.offload.file_format import is_block
from engine.offload.peers.lent_memory import LentMemory
from engine.offload.peers.wire import (
    ADDRESS,
    AGENT,
    FILE_LENGTH,
    HAS_FAILED,
    HAS_READ,
    LENT,
    NAME_LENGTH,
    receive,
)

IDLE_SECONDS = 60.0  # after which a connection that asks nothing is closed
SEND_SECONDS = 5.0  # without progress
LENT_SECONDS = 3.0  # more than a reader takes for a block
POLL_SECONDS = 5e-5
TCP, NIXL, FAILED = "tcp", "nixl", "nixl_failed"  # the last are asked for again, over TCP
_MAX_NAME_BYTES = 256


class Answers:
    """From any thread."""

    def __init__(self, folder: str, memory: LentMemory | None) -> None:
        """`memory`: None: without NIXL."""
        self._folder, self._memory = Path(folder), memory
        self._lock = threading.Lock()  # guards what follows
        self.num_served = Counter({TCP: 0, NIXL: 0, FAILED: 0})  # files, by what carried them

    def answer(self, stream: socket.socket) -> bool:
        """One question; False for one that is none, or if what was sent is cut short. Raises
        OSError.
        """
        deadline = time.monotonic() + IDLE_SECONDS
        (length,) = NAME_LENGTH.unpack(receive(stream, NAME_LENGTH.size, deadline))
        if length > _MAX_NAME_BYTES:
            return False
        name = receive(stream, length, deadline).decode(errors="replace")
        stream.settimeout(SEND_SECONDS)
        if name == AGENT:
            metadata = b"" if self._memory is None else self._memory.metadata
            stream.sendall(FILE_LENGTH.pack(len(metadata)) + metadata)
            return True
        opened = self._opened(name.removeprefix(LENT))
        if opened is None:
            stream.sendall(FILE_LENGTH.pack(0))
            return True
        with open(opened, "rb", buffering=0) as file:
            num_bytes = os.fstat(opened).st_size
            stream.sendall(FILE_LENGTH.pack(num_bytes))
            if num_bytes and self._memory is not None and name.startswith(LENT):
                return self._lend(stream, file, num_bytes, self._memory)
            return not num_bytes or self._send(stream, file, num_bytes)

    def _send(self, stream: socket.socket, file: FileIO, num_bytes: int) -> bool:
        self._count(TCP)
        return stream.sendfile(file, count=num_bytes) == num_bytes

    def _lend(self, stream: socket.socket, file: FileIO, num_bytes: int, memory: LentMemory) -> bool:
        """Says where in memory the file is until the reader has read it, or sends it if there is no
        room. Returns, raises as `answer`.
        """
        with memory.lent(num_bytes) as part:
            if part is None:
                stream.sendall(ADDRESS.pack(0))
                return self._send(stream, file, num_bytes)
            if file.readinto(part.view) != num_bytes:
                return False
            stream.sendall(ADDRESS.pack(part.address))
            deadline = time.monotonic() + LENT_SECONDS
            answer = select.poll()
            answer.register(stream, select.POLLIN)
            while not answer.poll(0) and time.monotonic() < deadline:
                memory.move_on()
                time.sleep(POLL_SECONDS)
            said = bytes(receive(stream, len(HAS_READ), deadline))
            self._count(NIXL if said == HAS_READ else FAILED)
            return said in (HAS_READ, HAS_FAILED)

    def _count(self, transport: str) -> None:
        with self._lock:
            self.num_served[transport] += 1

    def _opened(self, name: str) -> int | None:
        """The file's descriptor, None if it is not there; it counts as used now, and so does the
        folder.
        """
        if not is_block(name):
            return None
        try:
            os.utime(self._folder)
            opened = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        with suppress(OSError):
            os.utime(opened)
        return opened
