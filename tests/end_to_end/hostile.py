"""What hostile clients leave in metrics and logs (T30):

    python -m tests.end_to_end.hostile [--requests N]

`squadron serve` serves the demo model to two keys. N requests, no two alike, name paths, methods,
models, keys, headers and fields that there are not; some are bodies that are no JSON, and some
follow a key's prompts to an answer. No series of a metric may be new but of our own labels, no line
of a log may have a prompt or a key in it, and each line is an event of its own. Exits with status 1
if one is otherwise.
"""

import argparse
import http.client
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from cluster.progress import progress
from cluster.sockets import LOOPBACK
from tests.end_to_end.commands import serve
from tests.end_to_end.conftest import free_port
from tests.end_to_end.fuzz.judge import GIVEN_UP_SECONDS, Judge
from tests.end_to_end.fuzz.series import SeriesCheck

NUM_CONNECTIONS = 8
KEY = "hostile-key-good"
SECRET = re.compile(r"hostile-(key|text)")  # in every prompt, body and key
# Of an event's line: its level, or JSON.
EVENT = re.compile(r"(\x1b\[\d+m)?(DEBUG|INFO|WARNING|ERROR|CRITICAL|\{|\[|\d{4}-)")
OURS = "serve/"  # the folder of logs in which gateways and engines write


@dataclass
class Sent:
    """Answers by kind of request and status; failures."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def request_of(number: int) -> tuple[str, str, str, str | None, dict[str, str]]:
    """Kind, method, path, body and headers of one that has no like."""
    text, good = f"hostile-text-{number}", {"authorization": f"Bearer {KEY}"}
    completion = {"prompt": text, "max_tokens": 1}
    kinds: list[tuple[str, str, str, str | None, dict[str, str]]] = [
        ("path", "GET", f"/path-{number}?q=hostile-text-{number}", None, good),
        ("method", f"M{number}", "/v1/models", None, good),
        ("model", "POST", "/v1/completions", json.dumps(completion | {"model": f"model-{number}"}), good),
        ("field", "POST", "/v1/completions", json.dumps(completion | {text: 1, "temperature": number + 3}), good),
        ("key", "POST", "/v1/completions", json.dumps(completion), {"authorization": f"Bearer hostile-key-{number}"}),
        ("headers", "GET", "/v1/models", None, good | {"x-request-id": f"r{number}", "user-agent": f"a{number}"}),
        ("json", "POST", "/v1/chat/completions", f'{{"messages": [{{"{text}', good),
        ("answer", "POST", "/v1/completions", json.dumps(completion), good),
    ]
    return kinds[number % len(kinds)]


def send(port: int, numbers: range, sent: Sent, after_each: Callable[[], object]) -> None:
    """Over one connection, which is opened anew where the server closes it."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=GIVEN_UP_SECONDS)
    for number in numbers:
        kind, method, path, body, headers = request_of(number)
        try:
            connection.request(method, path, body, headers | {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            sent.statuses[kind, answer.status] += 1
        except (OSError, http.client.HTTPException) as error:
            sent.failures.append(f"{kind} {number}: {error!r}")
            connection.close()
        after_each()
    connection.close()


def check_logs(folder: Path) -> list[str]:
    """What lines of the logs have that they must not."""
    wrong = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        is_ours = str(file.relative_to(folder)).startswith(OURS)
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if SECRET.search(line):
                wrong.append(f"{file.name} has a text or a key: {line[:300]}")
            elif is_ours and line and not EVENT.match(line):
                wrong.append(f"{file.name} has a line that is no event: {line[:300]}")
    return wrong


def attack(folder: Path, num: int) -> tuple[Sent, Judge, list[str]]:
    """N requests to a server of their own; `folder`: an empty one."""
    keys = folder / "keys.yaml"
    keys.write_text(json.dumps({"keys": [{"name": "one", "key": KEY}, {"name": "two", "key": "hostile-key-two"}]}))
    port, sent, judge = free_port(), Sent(), Judge()
    with serve(folder, port, "--api-key-file", str(keys)) as command:
        command.wait_until_ready()
        assert command.process.poll() is None, command.said
        logs = next(line for line in command.said if line.startswith("Logs: ")).removeprefix("Logs: ").strip()
        series = SeriesCheck(f"http://{LOOPBACK}:{port}", judge, {"authorization": f"Bearer {KEY}"})
        parts = [range(first, num, NUM_CONNECTIONS) for first in range(NUM_CONNECTIONS)]
        with progress(total=num, unit="request") as bar, ThreadPoolExecutor(NUM_CONNECTIONS) as threads:
            list(threads.map(lambda numbers: send(port, numbers, sent, bar.update), parts))
        series.look()
        return sent, judge, check_logs(Path(logs))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.hostile", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, metavar="N")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sent, judge, wrong = attack(Path(folder), given.requests)
    print(", ".join(f"{kind} {status}: {count}" for (kind, status), count in sorted(sent.statuses.items())))
    print(f"series of metrics: {judge.num_series[0]} before, {judge.num_series[1]} after")
    failures = sent.failures + judge.failures + wrong
    print("\n".join(failures[:20]) + f"\n{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
