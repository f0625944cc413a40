"""Ray's temporary folder is full, as on a machine whose disk is, and processes are lost
meanwhile.
"""

import asyncio
import contextlib
import errno
import itertools
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import ChaosRequest, make_requests
from cluster.chaos.run import undisturbed
from cluster.launch.packages import ROOT
from tests.end_to_end.chaos.options import NotPossibleHere, Options
from tests.end_to_end.chaos.processes import ENGINE, SERVING, find, send
from tests.end_to_end.chaos.served import ServeCommand, serving

FOLDER = Path("/tmp")  # where the command makes Ray's
FOLDER_SIZE = "400m"
# A private mount namespace: a small disk is there for the command alone. It ends with the last
# process in it.
WITHIN = ("unshare", "--mount", "--propagation", "private", "sh", "-ec")
MOUNT = f'mount -t tmpfs -o size={FOLDER_SIZE} squadron {FOLDER}; exec "$@"'
PATIENCE = 30.0  # seconds, of the server
# That a request may wait for a word: for a replica that takes it, and for one that then cannot go
# on; and a busy machine's.
SILENCE_SECONDS = 2 * PATIENCE + 30
BACK_SECONDS = 90.0  # for a request to be answered when there is room again
PROBE_SECONDS = 3.0  # for a server that is idle to give a token
RETRY_SECONDS = 0.5
REFILL_SECONDS = 0.2
MAX_TOKENS = 300
BLOCK = bytes(1 << 20)


def fill(options: Options) -> Report:
    """disk: Ray's temporary folder is full when a worker and then the only engine are killed under
    42 requests: each ends, and is answered as before once there is room.
    """
    _check_that_it_can_be_done()
    return asyncio.run(_fill(options))


def _check_that_it_can_be_done() -> None:
    """Raises NotPossibleHere."""
    hidden = [str(path) for path in (ROOT, Path(sys.prefix)) if path.is_relative_to(FOLDER)]
    if hidden:
        raise NotPossibleHere(f"a disk mounted on {FOLDER} would hide {', '.join(hidden)}")
    if shutil.which("unshare") is None:
        raise NotPossibleHere("there is no unshare(1)")
    done = subprocess.run([*WITHIN, MOUNT, "sh", "true"], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotPossibleHere(f"no disk can be mounted in a namespace of its own: {done.stderr.strip()}")


async def _fill(options: Options) -> Report:
    num_requests = options.pick(options.streams, 42, 12)
    with serving("--patience", str(PATIENCE), within=(*WITHIN, MOUNT, "sh")) as command:
        async with ChaosClient(command.url, silence_seconds=SILENCE_SECONDS) as client:
            requests = _half_unary(
                make_requests(num_requests, model=await client.first_model(), max_tokens=MAX_TOKENS, seed=options.seed)
            )
            expected = await undisturbed(client, requests, num_requests)
            async with _full(command):
                faults, asked = await _ask_under_faults(client, command, requests, options)
            seconds = await _until_answered(client, requests[0])
            again: list[Stream] = []
            await client.send_all(requests, concurrency=num_requests, streams=again)
    report = Report("disk", 2, faults, again, expected)
    _judge(report, asked, seconds)
    return report


def _half_unary(requests: list[ChaosRequest]) -> list[ChaosRequest]:
    return [
        replace(request, body=request.body | {"stream": False, "stream_options": None})
        if request.index % 2
        else request
        for request in requests
    ]


@contextlib.asynccontextmanager
async def _full(command: ServeCommand) -> AsyncIterator[None]:
    """Whatever becomes free is taken at once, until the end of the context."""
    file = Path(f"/proc/{command.process.pid}/root{FOLDER}/filler")
    _take_what_is_free(file)
    filling = asyncio.create_task(_keep_full(file))
    try:
        yield
    finally:
        filling.cancel()
        file.unlink()


async def _keep_full(file: Path) -> None:
    while True:
        await asyncio.sleep(REFILL_SECONDS)
        _take_what_is_free(file)


def _take_what_is_free(file: Path) -> None:
    with file.open("ab", buffering=0) as filler:
        try:
            while True:
                filler.write(BLOCK)  # as much of it as there is room for
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


async def _ask_under_faults(
    client: ChaosClient, command: ServeCommand, requests: list[ChaosRequest], options: Options
) -> tuple[list[Fault], list[Stream]]:
    """A third of the requests is on its way when a worker is killed, a third comes then, and a
    third after the engine.
    """
    generator = random.Random(options.seed)
    faults: list[Fault] = []
    asked: list[Stream] = []
    third = -(-len(requests) // 3)
    async with asyncio.TaskGroup() as tasks:

        def ask(some: list[ChaosRequest]) -> None:
            tasks.create_task(client.send_all(some, concurrency=len(some), streams=asked))

        ask(requests[:third])
        await asyncio.sleep(options.interval or 1.0)
        for title, some in ((SERVING, requests[third : 2 * third]), (ENGINE, requests[2 * third :])):
            pid = generator.choice(sorted(find(title, command.process.pid)))
            at = time.monotonic()
            if send(pid, signal.SIGKILL):
                faults.append(Fault(f"kill -9 {title} {pid}", at))
            ask(some)
            await asyncio.sleep(options.interval or 3.0)
    return faults, asked


async def _until_answered(client: ChaosClient, request: ChaosRequest) -> float | None:
    """Seconds from now; None if it takes too long. One short request at a time, so as not to be the
    load that it waits for.
    """
    begin = time.monotonic()
    probe = replace(request, body=request.body | {"max_tokens": 1, "min_tokens": 0})
    while time.monotonic() < begin + BACK_SECONDS:
        with contextlib.suppress(TimeoutError):
            stream = await asyncio.wait_for(client.stream(probe), PROBE_SECONDS)
            if stream.transcript.is_complete:
                return time.monotonic() - begin
        await asyncio.sleep(RETRY_SECONDS)
    return None


def _judge(report: Report, asked: list[Stream], seconds: float | None) -> None:
    """Of those asked while the folder was full each has an end: its answer, a 503 or error event,
    or a broken connection.
    """
    ends = Counter[str]()
    for stream in asked:
        end = _end_of(stream)
        ends[end] += 1
        if end.startswith("answered") and stream.transcript.digest() != report.expected[stream.request.index].digest():
            report.unmet.append(f"request {stream.request.index} was answered otherwise than undisturbed")
        if end not in ("answered", "503", "an error in the stream", "connection broken"):
            report.unmet.append(f"request {stream.request.index} ended in {end}: {stream.error}")
    report.figures["while full"] = ", ".join(f"{number} {end}" for end, number in ends.most_common())
    waits = [max(b - a for a, b in _pairs(stream)) for stream in asked]
    report.figures["longest wait, s"] = round(max(waits), 1)
    report.figures["answered again after, s"] = "never" if seconds is None else round(seconds, 1)
    if seconds is None:
        report.unmet.append(f"nothing was answered for {BACK_SECONDS:.0f} s after there was room again")


def _pairs(stream: Stream) -> list[tuple[float, float]]:
    assert stream.ended is not None
    times = [stream.sent, *stream.arrivals, stream.ended]
    return list(itertools.pairwise(times))


def _end_of(stream: Stream) -> str:
    if max(b - a for a, b in _pairs(stream)) >= SILENCE_SECONDS:
        return "silence"
    if stream.error is None:
        return "answered" if stream.transcript.is_complete else "a clean end too early"
    if stream.status is None or stream.error.startswith(("ClientPayloadError", "ServerDisconnected")):
        return "connection broken"
    if stream.status == 200:
        return "an error in the stream"
    return "503" if stream.status == 503 and '"error"' in stream.error else f"status {stream.status}"
