"""Serves the files of a folder of blocks to ranks on other nodes."""

import logging
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
from engine.offload.peers.lent_memory import LentMemory, lent_memory
from engine.offload.peers.places import Places
from engine.offload.peers.wire import (
    ADDRESS,
    AGENT,
    FILE_LENGTH,
    GREETING_SECONDS,
    HAS_FAILED,
    HAS_READ,
    LENT,
    NAME_LENGTH,
    greet_reader,
    receive,
)

logger = logging.getLogger("squadron.offload")

IDLE_SECONDS = 60.0  # after which a connection that asks nothing is closed
SEND_SECONDS = 5.0  # without progress
JOIN_SECONDS = 5.0
LENT_SECONDS = 3.0  # more than a reader takes for a block
POLL_SECONDS = 5e-5
TCP, NIXL, FAILED = "tcp", "nixl", "nixl_failed"  # the last are asked for again, over TCP
_MAX_NAME_BYTES = 256


class BlockServer:
    """A thread that accepts, and one for each connection, of which there are as many as `Places`
    lets in. Serves files of blocks alone, to who knows the secret.
    """

    def __init__(self, folder: str, host: str, secret: str, *, uses_nixl: bool = False) -> None:
        """Listen on a free port of `host`, at `address`. Raises OSError."""
        self._memory = lent_memory() if uses_nixl else None
        self._folder, self._secret = Path(folder), secret.encode()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=64)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self.num_served = Counter({TCP: 0, NIXL: 0, FAILED: 0})  # files, by what carried them
        self._places = Places()
        self._lock = threading.Lock()  # guards `_has_told` and `num_served`
        self._is_closed = self._has_told = False
        self._thread = threading.Thread(target=self._accept, name="block server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections, in the middle of a block too. Idempotent."""
        self._is_closed = True
        with suppress(OSError):  # which wakes its thread
            self._socket.shutdown(socket.SHUT_RDWR)
        self._places.close()
        self._thread.join(JOIN_SECONDS)
        self._socket.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                stream, (host, *_) = self._socket.accept()
            except OSError:
                time.sleep(0.1)  # closed; or there are no more descriptors
                continue
            if self._places.enter(stream, host):
                try:
                    threading.Thread(target=self._serve, args=(stream,), name="blocks", daemon=True).start()
                except RuntimeError:  # there are no more threads
                    self._end(stream)
            else:
                stream.close()

    def _serve(self, stream: socket.socket) -> None:
        try:
            with suppress(OSError):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not greet_reader(stream, self._secret, time.monotonic() + GREETING_SECONDS):
                    self._tell_refused(stream)
                elif self._places.prove(stream):
                    while self._answer(stream):
                        pass
        finally:
            self._end(stream)

    def _end(self, stream: socket.socket) -> None:
        self._places.leave(stream)
        stream.close()

    def _answer(self, stream: socket.socket) -> bool:
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
        room. Returns, raises as `_answer`.
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

    def _tell_refused(self, stream: socket.socket) -> None:
        with self._lock:
            if not self._has_told:
                who = stream.getpeername()[0]
                logger.warning("%s does not know the secret and gets no blocks (others are not logged)", who)
            self._has_told = True
