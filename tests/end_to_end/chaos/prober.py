"""A client of its own beside a flood: how soon it is refused.

    python -m tests.end_to_end.chaos.prober URL MODEL

What floods a server has thousands of streams in one event loop, and how late that is counts in all
that it measures. This one asks some short requests a second, each by a thread and a connection of
its own, until its standard input ends. What comes of each it prints as a line of JSON.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

import msgspec

PER_SECOND = 10
_SECONDS = 60.0  # without a byte


class Told(msgspec.Struct):
    """What came of a request; status 0 is no answer."""

    status: int
    seconds: float  # from the connection's begin to the answer's end
    error: str = ""  # its code
    retry_after: str | None = None

    @property
    def is_refusal(self) -> bool:
        """As it is documented."""
        is_short = (self.retry_after or "").isdecimal() and 1 <= int(self.retry_after or 0) <= 120
        return self.status == 503 and self.error == "server_overloaded" and is_short


class Prober:
    """In another process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.told: list[Told] = []

    def stop(self) -> None:
        """Ask no more."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def next(self) -> Told:
        """Wait for what comes next of a request."""
        assert self._process.stdout is not None
        self.told.append(msgspec.json.decode(self._process.stdout.readline(), type=Told))
        return self.told[-1]

    def end(self) -> None:
        """Wait for the answers to what was asked."""
        self.stop()
        assert self._process.stdout is not None
        self.told += [msgspec.json.decode(line, type=Told) for line in self._process.stdout]


@contextlib.contextmanager
def probing(url: str, model: str) -> Iterator[Prober]:
    """What it was told is there once the context has ended."""
    command = [sys.executable, "-m", "tests.end_to_end.chaos.prober", url, model]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        prober = Prober(process)
        try:
            yield prober
        finally:
            prober.end()


def _ask(url: str, body: bytes) -> Told:
    address = urlsplit(url)
    began = time.monotonic()
    connection = HTTPConnection(address.hostname or "", address.port, timeout=_SECONDS)
    try:
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        seconds = time.monotonic() - began
        code = json.loads(content)["error"]["code"] if answer.status >= 400 else ""
        return Told(answer.status, seconds, code, answer.headers.get("retry-after"))
    except (OSError, ValueError, KeyError) as error:
        return Told(0, time.monotonic() - began, repr(error))
    finally:
        connection.close()


def main() -> None:
    url, model = sys.argv[1:]
    body = json.dumps({"model": model, "prompt": "once", "max_tokens": 8}).encode()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()

    def ask() -> None:
        line = msgspec.json.encode(_ask(url, body)) + b"\n"
        os.write(sys.stdout.fileno(), line)

    begin = time.monotonic()
    for number in itertools.count(1):
        threading.Thread(target=ask).start()  # the process ends after the last of them
        if ended.wait(max(0.0, begin + number / PER_SECOND - time.monotonic())):
            return


if __name__ == "__main__":
    main()
