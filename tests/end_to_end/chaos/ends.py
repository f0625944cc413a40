"""The end of a whole server: SIGTERM (T11), and the death of those processes of Ray's without which
nothing can be repaired.
"""

import asyncio
import contextlib
import subprocess
import time
from pathlib import Path

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import make_requests
from cluster.chaos.run import undisturbed
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.processes import SharedMemory, title_of
from tests.end_to_end.chaos.served import serving

EXIT_SECONDS = 30.0
ANSWER_SECONDS = 15.0  # for a new request to be answered, refused or cut off
SHORT_TOKENS = 300  # of streams that a server which ends can still finish
SETTLE_SECONDS = 2.0  # between the streams' begin and the fault


def terminate(options: Options) -> Report:
    """T11: SIGTERM for `squadron serve` under 37 clients: what is in flight ends well, what comes
    gets 503, nothing is left.
    """
    return asyncio.run(_end("T11", options, victim=None, status=0))


def lose_raylet(options: Options) -> Report:
    """raylet: kill -9 Ray's raylet: the same, and the command says why it ends, with status 1."""
    return asyncio.run(_end("raylet", options, victim="raylet", status=1))


def lose_gcs(options: Options) -> Report:
    """gcs: kill -9 Ray's GCS: the same."""
    return asyncio.run(_end("gcs", options, victim="gcs_server", status=1))


async def _end(name: str, options: Options, *, victim: str | None, status: int) -> Report:
    """As many clients as streams, which ask again and again until the port is closed; the fault
    comes early.
    """
    num_streams = options.pick(options.streams, 37, 8)
    shared = SharedMemory()
    with serving() as command:
        folders = command.folders()
        async with ChaosClient(command.url, silence_seconds=ANSWER_SECONDS) as client:
            requests = make_requests(
                num_streams, model=await client.first_model(), max_tokens=SHORT_TOKENS, seed=options.seed
            )
            expected = await undisturbed(client, requests, num_streams)
            streams: list[Stream] = []
            ended = asyncio.Event()
            sending = asyncio.create_task(
                client.send_all(requests, concurrency=num_streams, streams=streams, stop=ended)
            )
            await asyncio.sleep(SETTLE_SECONDS)
            shared.look()
            fault = command.harm(victim)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(command.process.wait, EXIT_SECONDS)
            seconds = time.monotonic() - fault.at
            ended.set()
            await sending
        report = _judge(name, fault, streams, expected)
        report.figures["exit, s"] = round(seconds, 2)
        if command.process.poll() != status:
            report.unmet.append(f"status {command.process.poll()} after {seconds:.0f} s, not {status}")
        said = Path(command.stderr.name).read_text().splitlines()
        if len(said) != (victim is not None):
            report.unmet.append(f"said on stderr: {said}")
        left = [title_of(pid) for pid in command.processes()]
    left += [str(folder) for folder in folders if folder.exists()]
    left += shared.look()
    report.figures["left behind"] = len(left)
    report.unmet += [f"left behind: {each}" for each in left]
    return report


def _judge(name: str, fault: Fault, streams: list[Stream], expected: dict[int, object]) -> Report:
    """What was taken must end well; after the fault 503 with Retry-After is an answer, too, and in
    the end a closed port.
    """
    taken = [stream for stream in streams if stream.status == 200 or stream.sent < fault.at]
    others = [stream for stream in streams if stream not in taken]
    refused = [stream for stream in others if stream.status is not None]
    closed = [stream for stream in others if stream.status is None and "Cannot connect" in str(stream.error)]
    report = Report(name, 1, [fault], taken, expected)
    for stream in refused:
        if stream.status != 503 or "shutting_down" not in str(stream.error) or stream.retry_after is None:
            report.unmet.append(f"a new request got {stream.status}, Retry-After {stream.retry_after}: {stream.error}")
    cut = [stream for stream in others if stream.status is None and stream not in closed]
    for stream in cut:
        when, seconds = stream.sent - fault.at, (stream.ended or 0) - stream.sent
        report.unmet.append(f"a request sent after {when:.1f} s was cut off {seconds:.1f} s later: {stream.error}")
    if not refused:
        report.unmet.append("no new request was refused")
    else:
        report.figures["refused after, s"] = round(min(stream.ended or 0 for stream in refused) - fault.at, 2)
        report.figures["longest answer, s"] = round(max((stream.ended or 0) - stream.sent for stream in others), 2)
    report.figures["requests"] = (
        f"{len(taken)} taken, {len(refused)} refused, {len(cut)} cut off, {len(closed)} after the port was closed"
    )
    return report
