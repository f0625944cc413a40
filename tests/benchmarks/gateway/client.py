"""The clients: as many connections as streams, each read for itself, all in one process.

    python -m tests.benchmarks.gateway.client --http PORT --steps PORT --pid PID --streams N
        --tokens N [--path PATH]

Prints what the server's process, PID, spent on the tokens between the first step and the last, and
what it spent on each request beside them.
"""

import argparse
import json
import resource
import select
import socket
import time

from cluster.sockets import LOOPBACK
from tests.benchmarks.gateway.engine import TEXT

END = b"0\r\n\r\n"  # of an answer
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
}
LENGTHS = {"/v1/responses": "max_output_tokens"}


def cpu_seconds(pid: int) -> float:
    """Processor time of another process, all of its threads: Linux's clock of a process."""
    return time.clock_gettime(((~pid) << 3) | 2)


class Clients:
    def __init__(self, port: int, num_streams: int, num_tokens: int, path: str) -> None:
        body = json.dumps(BODIES[path] | {"stream": True, LENGTHS.get(path, "max_tokens"): num_tokens}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._poll = select.epoll()
        self._connections = {}
        self._tails: dict[int, bytes] = {}
        for _ in range(num_streams):
            connection = socket.create_connection((LOOPBACK, port))
            connection.sendall(head.encode() + body)
            connection.setblocking(False)
            self._connections[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)
        self.num_tokens = self.num_events = self.num_bytes = 0

    def read(self, num_tokens: int) -> None:
        """Until that many have come in all."""
        text = TEXT.encode()
        while self.num_tokens < num_tokens:
            for number, _ in self._poll.poll():
                data = self._receive(number)
                self.num_tokens += data.count(text)
                self.num_events += data.count(b"data: ")
                self.num_bytes += len(data)

    def close(self) -> None:
        """Once the last byte of each answer has come."""
        for number, connection in self._connections.items():
            connection.setblocking(True)
            while self._tails[number] != END:
                self._receive(number)
            connection.close()

    def _receive(self, number: int) -> bytes:
        data = self._connections[number].recv(1 << 16)
        if not data:
            raise ConnectionError("a stream ended early")
        if number not in self._tails and not data.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(f"a request was refused: {data[:200]!r}")
        self._tails[number] = (self._tails.get(number, b"") + data)[-len(END) :]
        return data


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    num_streams, num_tokens = arguments.streams, arguments.tokens
    began = cpu_seconds(arguments.pid)
    clients = Clients(arguments.http, num_streams, num_tokens, arguments.path)
    steps = socket.create_connection((LOOPBACK, arguments.steps))
    steps.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    steps.sendall(b".")
    clients.read(num_streams)
    events, received = clients.num_events, clients.num_bytes
    spent, started = cpu_seconds(arguments.pid), time.monotonic()
    for step in range(1, num_tokens - 1):
        steps.sendall(b".")
        clients.read(num_streams * (step + 1))
    spent, seconds = cpu_seconds(arguments.pid) - spent, time.monotonic() - started
    count = num_streams * (num_tokens - 2)
    per_token = spent / count
    result = {
        "cpu_seconds": per_token,
        "tokens_per_second": count / seconds,
        "events": (clients.num_events - events) / count,
        "event_bytes": (clients.num_bytes - received) / count,
    }
    steps.sendall(b".")
    clients.read(num_streams * num_tokens)
    clients.close()
    per_request = (cpu_seconds(arguments.pid) - began) / num_streams - per_token * num_tokens
    return result | {"request_cpu_seconds": per_request}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("http", "steps", "pid", "streams", "tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--path", default="/v1/chat/completions")
    arguments = parser.parse_args()
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print(json.dumps(measure(arguments)))


if __name__ == "__main__":
    main()
