"""Serves the files of a folder of blocks to ranks on other nodes."""

import logging
import socket
import threading
import time
from contextlib import suppress

from engine.offload.peers.answers import Answers
from engine.offload.peers.lent_memory import lent_memory
from engine.offload.peers.places import Places
from engine.offload.peers.wire import GREETING_SECONDS, greet_reader

logger = logging.getLogger("squadron.offload")

JOIN_SECONDS = 5.0


class BlockServer:
    """A thread that accepts, and one for each connection, of which there are as many as `Places`
    lets in. Serves files of blocks alone, to who knows the secret.
    """

    def __init__(self, folder: str, host: str, secret: str, *, uses_nixl: bool = False) -> None:
        """Listen on a free port of `host`, at `address`. Raises OSError."""
        self.answers = Answers(folder, lent_memory() if uses_nixl else None)
        self._secret = secret.encode()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=64)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._places = Places()
        self._lock = threading.Lock()  # guards `_has_told`
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
                    while self.answers.answer(stream):
                        pass
        finally:
            self._end(stream)

    def _end(self, stream: socket.socket) -> None:
        self._places.leave(stream)
        stream.close()

    def _tell_refused(self, stream: socket.socket) -> None:
        with self._lock:
            if not self._has_told:
                who = stream.getpeername()[0]
                logger.warning("%s does not know the secret and gets no blocks (others are not logged)", who)
            self._has_told = True
