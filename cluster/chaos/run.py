"""The undisturbed run that streams are compared with, and a run's progress bar."""

import asyncio

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Fault
from cluster.chaos.requests import KINDS, ChaosRequest, make_requests
from cluster.chaos.transcript import Transcript
from cluster.progress import progress
from engine.errors import InvalidConfig

TICK_SECONDS = 0.5


async def answerable_kinds(client: ChaosClient, model: str) -> tuple[str, ...]:
    """The kinds of requests but for calls of tools, if the model's chat template has none."""
    (request,) = make_requests(1, model=model, max_tokens=1, kinds=("tools",))
    stream = await client.stream(request)
    return KINDS if stream.status != 400 else tuple(kind for kind in KINDS if kind != "tools")


async def undisturbed(client: ChaosClient, requests: list[ChaosRequest], concurrency: int) -> dict[int, Transcript]:
    """The transcript of each request, by index; raises InvalidConfig if any fails even then."""
    streams: list[Stream] = []
    done = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(show(streams, [], done, total=len(requests), label="undisturbed"))
        await client.send_all(requests, concurrency=concurrency, streams=streams)
        done.set()
    for stream in streams:
        if not stream.transcript.is_complete:
            why = stream.error or "the stream ended early"
            raise InvalidConfig(
                f"request {stream.request.index} ({stream.request.kind}) fails without any fault: {why}"
            )
    return {stream.request.index: stream.transcript for stream in streams}


async def show(
    streams: list[Stream], faults: list[Fault], done: asyncio.Event, *, total: int, label: str = "streams"
) -> None:
    """A progress bar of ended streams and delivered faults, until `done`; occasional lines if
    stderr is not a terminal.
    """
    with progress(total=total, desc=label, unit="stream") as bar:
        while not done.is_set() or bar.n < len(streams):
            bar.total = max(total, len(streams))
            bar.set_postfix(faults=len(faults), refresh=False)
            bar.update(len(streams) - bar.n)
            await asyncio.sleep(TICK_SECONDS)
