"""Many streams at once, by clients in processes of their own, and the engine alone with the same
requests: `python -m tests.benchmarks.gpu.serving.load` of a `Load` as JSON prints its figures.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tests.benchmarks.http.bench import KINDS, Asked, make_works
from tests.benchmarks.http.processes import cpu_seconds
from tests.benchmarks.peers import Squadron

Figures = dict[str, Any]
ROUNDS = 2  # of the engine alone; in the first one kernels may still be compiled


@dataclass(frozen=True, slots=True)
class Load:
    model: str  # a folder
    streams: int
    requests: int
    input_len: int
    output_len: int
    letters: bool  # of these alone are the answers
    engine: dict[str, Any]  # options of the engine alone

    def works(self) -> list[Asked]:
        options = argparse.Namespace(
            streams=self.streams,
            requests=self.requests,
            input_len=self.input_len,
            output_len=self.output_len,
            any_token=not self.letters,
        )
        return make_works(self.model, options)


async def alone(load: Load) -> Figures:
    """Tokens a second of the engine without anything before it, in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.gpu.serving.load"]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
    try:
        told, _ = await process.communicate(json.dumps(asdict(load)).encode())
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise ChildProcessError(f"the engine ended with {process.returncode}")
    return dict(json.loads(told.splitlines()[-1]))


def _alone(load: Load) -> Figures:
    asked = load.works()
    with Squadron(load.model, max_num_seqs=load.streams, **load.engine) as engine:
        engine.run(asked[: load.streams])
        seconds = min(engine.run(asked).last for _ in range(ROUNDS))
    return {"streams": load.streams, "tok_per_s": _num_tokens(asked) / seconds}


async def through_http(port: int, pid: int, load: Load, clients: int) -> Figures:
    """The requests dealt out to as many clients. Raises ConnectionError if a stream failed."""
    asked, streams = load.works(), load.streams
    before = cpu_seconds(pid)
    parts = [asked[number::clients] for number in range(clients)]
    done = await asyncio.gather(*(_client(port, part, streams // clients) for part in parts))
    after = cpu_seconds(pid)
    failures = [failure for each in done for failure in each["failures"]]
    if failures:
        raise ConnectionError(f"{len(failures)} streams failed: {failures[:2]}")
    num_tokens = _num_tokens(asked)
    spent = {"client": sum(each["cpu_seconds"] for each in done)}
    spent |= {kind: after[kind] - before[kind] for kind in KINDS[1:]}
    first = [1e3 * each for one in done for each in one["first_event_seconds"]]
    gaps = [1e3 * each for one in done for each in one["gap_seconds"]]
    return {
        "streams": streams,
        "clients": clients,
        "tok_per_s": num_tokens / max(each["seconds"] for each in done),
        "events_per_token": sum(each["events"] for each in done) / num_tokens,
        **_percentiles("first_event_ms", first),
        **_percentiles("gap_ms", gaps),
        **{f"{kind}_us": seconds / num_tokens * 1e6 for kind, seconds in spent.items()},
    }


async def _client(port: int, asked: Sequence[Asked], streams: int) -> Figures:
    command = [sys.executable, "-m", "tests.benchmarks.http.client", "--port", str(port), "--streams", str(streams)]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        told, _ = await process.communicate(b"\n".join(_body(work) for work in asked))
    finally:
        if process.returncode is None:
            process.kill()
    return dict(json.loads(told))


def _body(work: Asked) -> bytes:
    """Where any token may come, its number makes each an event, half a character too."""
    body = json.loads(work.body)
    return json.dumps(body | {"return_token_ids": True} if work.allowed_ids is None else body).encode()


def _percentiles(name: str, values: Sequence[float]) -> Figures:
    return {f"{name}_p{share}": float(np.percentile(values, share)) for share in (50, 99) if len(values)}


def _num_tokens(asked: Sequence[Asked]) -> int:
    return sum(work.output_len for work in asked)


if __name__ == "__main__":
    print(json.dumps(_alone(Load(**json.load(sys.stdin)))))
