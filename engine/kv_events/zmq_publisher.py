"""Publishes a cache's changes over ZeroMQ, as vLLM does: messages of [topic, number, payload], and
a second socket from which missed ones can be asked again.
"""

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections import deque

import msgspec
import zmq

from engine.config import KVEventsConfig
from engine.errors import InvalidConfig
from engine.kv_events.events import Event, EventBatch

logger = logging.getLogger("squadron.kv_events")

END = (-1).to_bytes(8, "big", signed=True)  # the number of the message that ends a replay
MAX_ENGINES = 64  # on one machine: each takes the first port that is free
LINGER_MS = 1000  # for subscribers to get the last messages
_OURS = ("*", "0.0.0.0", "127.0.0.1", "localhost", "[::1]", "[::]")


class ZmqPublisher:
    """One thread owns the sockets. Messages are numbered from 0; a gap means that some were
    dropped, because more than `max_queue_size` waited.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        """Raises InvalidConfig if no socket can be had."""
        self._waiting: queue.Queue[tuple[int, EventBatch] | None] = queue.Queue(config.max_queue_size)
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._topic = config.topic.encode()
        self._numbers = itertools.count()
        self._num_dropped = 0
        self._context = zmq.Context()
        self._rank = self._open(config)
        self._wake, self._woken = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._woken.bind("inproc://woken")
        self._wake.connect("inproc://woken")
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="kv events", daemon=True)
        self._thread.start()

    @property
    def endpoints(self) -> tuple[str, str | None]:
        """Where to subscribe, and where to ask for a replay."""
        replay = None if self._replay is None else self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        return self._messages.getsockopt_string(zmq.LAST_ENDPOINT), replay

    def publish(self, events: list[Event]) -> None:
        """From one thread."""
        batch = EventBatch(time.time(), events, self._rank)
        try:
            self._waiting.put_nowait((next(self._numbers), batch))
        except queue.Full:
            if not self._num_dropped:
                logger.warning("KV events are dropped: %d messages wait", self._waiting.maxsize)
            self._num_dropped += 1
        self._tell_thread()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._waiting.put(None)
        self._tell_thread()
        self._thread.join()
        self._wake.close()
        self._context.term()

    def _open(self, config: KVEventsConfig) -> int:
        """Sockets at the first free port from the configured one on; how many were taken."""
        for offset in range(MAX_ENGINES):
            self._messages, self._replay = self._context.socket(zmq.PUB), None
            self._messages.ipv6 = "[" in config.endpoint
            self._messages.set_hwm(config.hwm)
            self._messages.linger = LINGER_MS
            try:
                _attach(self._messages, _shifted(config.endpoint, offset))
                if config.replay_endpoint is not None:
                    self._replay = self._context.socket(zmq.ROUTER)
                    self._replay.linger = LINGER_MS
                    self._replay.ipv6 = "[" in config.replay_endpoint
                    self._replay.set_hwm(config.buffer_steps + 1)  # a whole answer: what exceeds it would be dropped
                    self._replay.bind(_shifted(config.replay_endpoint, offset))
            except (zmq.ZMQError, ValueError) as error:
                for socket in (self._messages, self._replay):
                    if socket is not None:
                        socket.close(linger=0)
                if not (isinstance(error, zmq.ZMQError) and error.errno == zmq.EADDRINUSE):
                    self._context.term()
                    raise InvalidConfig(f"kv_events_config.endpoint={config.endpoint}: {error}") from None
            else:
                logger.info("KV events: %s", " and ".join(each for each in self.endpoints if each))
                return offset
        self._context.term()
        raise InvalidConfig(f"kv_events_config.endpoint={config.endpoint}: {MAX_ENGINES} ports from it on are in use")

    def _tell_thread(self) -> None:
        with contextlib.suppress(zmq.Again):  # it was told a thousand times, and has yet to look
            self._wake.send(b"", zmq.NOBLOCK)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        encoder = msgspec.msgpack.Encoder()
        is_open = True
        while is_open:
            ready = dict(poller.poll())
            if self._replay is not None and self._replay in ready:
                self._answer(self._replay)
            if self._woken in ready:
                self._woken.recv()
                while is_open and not self._waiting.empty():
                    is_open = self._send(self._waiting.get(), encoder)
        for socket in (self._messages, self._replay, self._woken):
            if socket is not None:
                socket.close()

    def _send(self, item: tuple[int, EventBatch] | None, encoder: msgspec.msgpack.Encoder) -> bool:
        """Whether there may be more."""
        if item is None:
            return False
        number, payload = item[0].to_bytes(8, "big"), encoder.encode(item[1].as_arrays())
        self._messages.send_multipart((self._topic, number, payload))
        self._kept.append((number, payload))
        return True

    def _answer(self, replay: "zmq.Socket[bytes]") -> None:
        """All kept messages from the asked number on, then END."""
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            logger.warning("KV events: a replay was asked with %d frames", len(frames))
            return
        client, _, first = frames
        for number, payload in self._kept:
            if number >= first:
                replay.send_multipart((client, b"", number, payload))
        replay.send_multipart((client, b"", END, b""))


def _attach(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
    """Listen at an address of this machine; connect to any other, where a collector listens."""
    scheme, _, address = endpoint.partition("://")
    if scheme in ("ipc", "inproc") or address.rpartition(":")[0] in _OURS:
        socket.bind(endpoint)
    else:
        socket.connect(endpoint)


def _shifted(endpoint: str, offset: int) -> str:
    """With the port so much higher; raises ValueError."""
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}-{offset}" if offset else endpoint
    address, _, port = endpoint.rpartition(":")
    return endpoint if port in ("0", "*") else f"{address}:{int(port) + offset}"
