"""A stream beside all inputs: how long it waits for its next token.

    python -m tests.end_to_end.fuzz.neighbour URL

Asks for one answer after the other until its standard input ends, then prints the gaps between
events as JSON: their number, and seconds. In a process of its own, since what draws inputs keeps
the interpreter's lock.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import requests

MAX_GAP_SECONDS = 0.3
_BODY = {"prompt": "Count:", "max_tokens": 48, "temperature": 0, "ignore_eos": True, "stream": True}
_SECONDS = 60.0  # without a byte


class Gaps:
    """Between the events of streams."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.num_refused = 0  # streams, for a while: the queue is full of the largest inputs

    def read(self, url: str, ended: threading.Event) -> None:
        session = requests.Session()
        while not ended.is_set():
            with session.post(f"{url}/v1/completions", json=_BODY, stream=True, timeout=_SECONDS) as answer:
                if answer.status_code == 503 and (seconds := answer.headers.get("retry-after")):
                    self.num_refused += 1
                    ended.wait(float(seconds))
                    continue
                answer.raise_for_status()
                self._of_one(answer, ended)

    def _of_one(self, answer: requests.Response, ended: threading.Event) -> None:
        before = None
        for line in answer.iter_lines(chunk_size=None):
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            if before is not None:
                self.seconds.append(now - before)
            before = now
            if ended.is_set():
                return

    def told(self) -> dict[str, float]:
        ordered = sorted(self.seconds)
        if not ordered:
            return {"count": 0}
        return {
            "count": len(ordered),
            "p50": ordered[len(ordered) // 2],
            "p99": ordered[len(ordered) * 99 // 100],
            "max": ordered[-1],
            "too_long": sum(gap > MAX_GAP_SECONDS for gap in ordered),
            "refused": self.num_refused,
        }


@contextlib.contextmanager
def beside(url: str) -> Iterator[dict[str, float]]:
    """A stream in another process; the figures are there once the context has ended."""
    figures: dict[str, float] = {}
    command = [sys.executable, "-m", "tests.end_to_end.fuzz.neighbour", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield figures
        finally:
            told, _ = process.communicate()
    if process.returncode == 0:
        figures.update(json.loads(told))


def main() -> None:
    ended, gaps = threading.Event(), Gaps()
    waits = threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True)
    waits.start()
    gaps.read(sys.argv[1], ended)
    print(json.dumps(gaps.told()))


if __name__ == "__main__":
    main()
