"""The undisturbed run that streams are compared with, and a run's progress bar."""

import asyncio

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Fault
from cluster.chaos.requests import BASIC, KINDS, ChaosRequest, make_requests
from cluster.chaos.transcript import Transcript
from cluster.progress import progress
from engine.errors import InvalidConfig

TICK_SECONDS = 0.5
REFUSED = (400, 404)  # statuses; the latter where responses are not stored
ANY_MODELS = frozenset(BASIC) - {"tools"}


async def answerable_kinds(client: ChaosClient, model: str, adapter: str) -> tuple[str, ...]:
    """The kinds of requests but for those that the model cannot answer: its chat template has no
    tools, its tokenizer no marks of reasoning, or no "yes" and "no", or it has no adapter.
    """
    requests = make_requests(len(KINDS), model=model, adapter=adapter, max_tokens=32, kinds=KINDS)
    asked = [request for request in requests if request.kind not in ANY_MODELS]
    streams = await asyncio.gather(*map(client.stream, asked))
    refused = {stream.request.kind for stream in streams if stream.status in REFUSED}
    return tuple(kind for kind in KINDS if kind not in refused)


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
