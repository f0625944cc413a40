"""Too little cache (T20): requests are preempted again and again, and nobody can tell."""

import asyncio
import math

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import ChaosRequest, make_requests
from cluster.chaos.run import undisturbed
from cluster.chaos.transcript import Transcript
from tests.end_to_end.chaos.app import ANY_QUEUE, FOUR_RANKS, app_args, running
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.run import Load

BLOCK_TOKENS = 16
PROMPT_TOKENS = 120  # at least as many as any prompt here has
SHARE = 0.25


def starve(options: Options) -> Report:
    """T20: a cache of a quarter of what 32 streams need: all end, as with enough of it."""
    load = Load(options.pick(options.streams, 200, 32), concurrency=32, max_tokens=200, seed=options.seed)
    demand = load.concurrency * math.ceil((PROMPT_TOKENS + load.max_tokens) / BLOCK_TOKENS)
    with running(app_args(FOUR_RANKS, recovers=options.recovers)) as app:
        requests, expected = asyncio.run(_ask(app.url, load))
    small = {"num_gpu_blocks_override": int(SHARE * demand), "kv_cache_memory_bytes": None}
    with running(app_args(FOUR_RANKS | ANY_QUEUE | small, recovers=options.recovers, max_queue_seconds=0)) as app:
        streams = asyncio.run(_ask_again(app.url, load, requests))
        (stats,) = app.stats()
    preemptions = stats["num_preemptions_swap"] + stats["num_preemptions_recompute"]
    faults = [Fault("preemption", streams[0].sent, interrupts=False)] * preemptions
    report = Report("T20", 1, faults, streams, expected)
    report.figures |= {"blocks": f"{stats['num_gpu_blocks']} of {demand} needed", "preemptions": preemptions}
    return report


async def _ask(url: str, load: Load) -> tuple[list[ChaosRequest], dict[int, Transcript]]:
    async with ChaosClient(url) as client:
        model = await client.first_model()
        requests = make_requests(load.num_streams, model=model, max_tokens=load.max_tokens, seed=load.seed)
        return requests, await undisturbed(client, requests, load.concurrency)


async def _ask_again(url: str, load: Load, requests: list[ChaosRequest]) -> list[Stream]:
    streams: list[Stream] = []
    async with ChaosClient(url) as client:
        await client.send_all(requests, concurrency=load.concurrency, streams=streams)
    return streams
