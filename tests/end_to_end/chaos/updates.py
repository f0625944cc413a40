"""Changes that an operator makes (T10): another configuration, more and fewer replicas; and the end of a server (T11)."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray import serve

from cluster.channel import LOOPBACK
from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.command import undisturbed
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import make_requests
from cluster.launch import APP_NAME, ROOT, build_app
from tests.end_to_end.chaos.app import DEMO, app_args, running
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.processes import send, shared_memory, title_of
from tests.end_to_end.chaos.run import POLL_SECONDS, Deliver, Load, disturbed
from tests.end_to_end.conftest import free_port

EXIT_SECONDS = 30.0
LONG_TOKENS = 1500
PROBE_SECONDS = 0.5  # between two new requests
SHORT_TOKENS = 400  # of streams that a server which ends can still finish


def update(options: Options) -> Report:
    """T10: 2 engines, 1, 2, and all replaced by a rolling update, under long streams; minutes on two cores: each of the three
    replaces every replica, one engine at a time, and a gateway once its streams have ended."""
    args = app_args({}, recovers=options.recovers, num_engines=2)
    steps = {
        "scale to 1": args | {"num_engines": 1},
        "scale to 2": args,
        "rolling update": args | {"engine": args["engine"] | {"max_num_seqs": 128}},
    }
    tokens = SHORT_TOKENS if options.quick else LONG_TOKENS
    load = Load(options.pick(options.streams, 32, 8), concurrency=8, max_tokens=tokens, seed=options.seed)
    with running(args) as app:
        deliver = _apply(steps, options.interval or 5.0)
        return asyncio.run(disturbed("T10", app.url, load, num_faults=len(steps), deliver=deliver))


def terminate(options: Options) -> Report:
    """T11: SIGTERM for `squadron serve`: what is in flight ends well, what comes gets 503, nothing is left behind."""
    num_streams = options.pick(options.streams, 24, 8)
    port = free_port()
    before = shared_memory()
    with _serving(port) as (process, mark):
        report = asyncio.run(_terminate(f"http://{LOOPBACK}:{port}", process, num_streams, options.seed))
        report.figures["exit, s"] = round(_wait(process, report.faults[0].at), 2)
        if process.poll() is None:
            report.unmet.append(f"the command has not ended {EXIT_SECONDS:.0f} s after SIGTERM")
        orphans = [title_of(pid) for pid in _orphans(mark)]
    left = shared_memory() - before
    report.figures |= {"orphans": len(orphans), "left in /dev/shm": len(left)}
    report.unmet += [f"left behind: {name}" for name in (*orphans, *sorted(left))]
    return report


def _apply(steps: dict[str, dict[str, Any]], seconds: float) -> Deliver:
    async def deliver(faults: list[Fault]) -> None:
        for name, args in steps.items():
            await asyncio.sleep(seconds)
            at = time.monotonic()
            await asyncio.to_thread(serve.run, build_app(args), name=APP_NAME, route_prefix="/")
            faults.append(Fault(name, at))
        await asyncio.sleep(seconds)

    return deliver


async def _terminate(url: str, process: subprocess.Popen[str], num_streams: int, seed: int) -> Report:
    """All streams at once; SIGTERM a moment after; then new requests, until nobody answers."""
    async with ChaosClient(url) as client:
        model = await client.first_model()
        requests = make_requests(num_streams, model=model, max_tokens=SHORT_TOKENS, seed=seed)
        expected = await undisturbed(client, requests, num_streams)
        streams: list[Stream] = []
        sending = asyncio.create_task(client.send_all(requests, concurrency=num_streams, streams=streams))
        await asyncio.sleep(3 * POLL_SECONDS * num_streams)
        fault = Fault(f"SIGTERM squadron serve {process.pid}", time.monotonic())
        process.send_signal(signal.SIGTERM)
        probing = []
        while not sending.done():
            probing.append(asyncio.create_task(client.stream(requests[0])))
            await asyncio.wait([sending], timeout=PROBE_SECONDS)
        probes = await asyncio.gather(*probing)
    taken = [stream for stream in probes if stream.status == 200]  # before the signal had got through
    answered = [stream for stream in probes if stream.status not in (None, 200)]
    report = Report("T11", 1, [fault], streams + taken, expected)
    for stream in answered:
        if stream.status != 503 or "shutting_down" not in str(stream.error) or stream.retry_after is None:
            report.unmet.append(f"a new request got {stream.status}, Retry-After {stream.retry_after}: {stream.error}")
    if not answered:
        report.unmet.append("no new request was answered after SIGTERM")
    report.figures["new requests"] = (
        f"{len(taken)} taken, {len(answered)} refused, {len(probes) - len(taken) - len(answered)} not answered"
    )
    return report


@contextlib.contextmanager
def _serving(port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, ready, and what every process below it has in its environment."""
    mark = f"SQUADRON_CHAOS={os.getpid()}-{port}"
    command = [sys.executable, "-m", "cluster.cli", "serve", str(DEMO), "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "-tp", "2", "-pp", "2", "--kv-cache-memory-bytes", str(64 << 20)],
        cwd=ROOT,
        env=os.environ | dict([mark.split("=", 1)]),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert any(re.match("Ready: ", line) for line in process.stdout), "the server did not start"
        yield process, mark
    finally:
        for pid in [process.pid, *_orphans(mark)]:
            send(pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _wait(process: subprocess.Popen[str], since: float) -> float:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=max(0.1, since + EXIT_SECONDS - time.monotonic()))
    return time.monotonic() - since


def _orphans(mark: str) -> list[int]:
    """Processes that have the mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found
