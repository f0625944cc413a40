"""Requests that harm whoever computes them (T12): the neighbours must not notice, and the harm must end."""

import asyncio
import signal
import time

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import ChaosRequest, make_requests
from tests.end_to_end.chaos.app import FOUR_RANKS, app_args, running
from tests.end_to_end.chaos.freezes import num_recoveries
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.processes import WORKER, find, send
from tests.end_to_end.chaos.run import Deliver, Load, disturbed

NEIGHBOURS = 63
MAX_KILLED = 3  # groups that a request may take with it before it is left alone
PATIENCE_SECONDS = 90.0


def poison_rows(options: Options) -> Report:
    """T12: a request without any token that could be sampled, 50 times beside 63 others: it alone fails, nothing restarts."""
    num_faults = options.pick(options.faults, 50, 5)
    load = Load(options.pick(options.streams, NEIGHBOURS, 20), seed=options.seed)
    with running(app_args(FOUR_RANKS, recovers=options.recovers)) as app:
        workers = sorted(find(WORKER))
        deliver = _send_poison(app.url, num_faults)
        report = asyncio.run(disturbed("T12-row", app.url, load, num_faults=num_faults, deliver=deliver))
        report.figures["recoveries"] = num_recoveries(app)
        if report.figures["recoveries"] or sorted(find(WORKER)) != workers:
            report.unmet.append("a row that could not be sampled cost a restart")
    return report


def poison_processes(options: Options) -> Report:
    """T12: a request whose every step kills a worker is given up after few restarts; those that follow are answered."""
    with running(app_args(FOUR_RANKS, recovers=options.recovers)) as app:
        return asyncio.run(_kill_with(app.url, options.seed))


def _poison(model: str) -> ChaosRequest:
    """Only one token may be sampled, and it may not end the answer before it is long enough: nothing is left."""
    body = {
        "model": model,
        "prompt": "poison",
        "max_tokens": 8,
        "min_tokens": 4,
        "allowed_token_ids": [7],
        "stop_token_ids": [7],
        "stream": True,
    }
    return ChaosRequest(-1, "poison", "/v1/completions", body)


def _send_poison(url: str, num: int) -> Deliver:
    async def deliver(faults: list[Fault]) -> None:
        async with ChaosClient(url) as client:
            request = _poison(await client.first_model())
            for _ in range(num):
                stream = await client.stream(request)
                if stream.error is not None:
                    faults.append(Fault(f"poison: {stream.error}", stream.sent, interrupts=False))

    return deliver


async def _kill_with(url: str, seed: int) -> Report:
    """The first request of all is the poison: whenever it has got a token, a worker is killed."""
    async with ChaosClient(url) as client:
        requests = make_requests(8, model=await client.first_model(), max_tokens=64, seed=seed)
        long = make_requests(1, model=await client.first_model(), max_tokens=1500, seed=seed)[0]
        streams: list[Stream] = []
        await client.send_all(requests, concurrency=8, streams=streams)
        expected = {stream.request.index: stream.transcript for stream in streams}
        poisoned = asyncio.create_task(client.stream(long))
        faults: list[Fault] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not poisoned.done() and time.monotonic() < deadline and len(faults) <= MAX_KILLED:
            await asyncio.sleep(1.0)
            pids = find(WORKER + ".run")
            if pids and not poisoned.done():
                send(pids[0], signal.SIGKILL)
                faults.append(Fault(f"kill -9 {pids[0]}, as the poison would", time.monotonic()))
                await asyncio.sleep(2.0)
        is_given_up = poisoned.done() and poisoned.result().error is not None
        error = poisoned.result().error if poisoned.done() else "it is still served"
        poisoned.cancel()
        streams = []
        await client.send_all(requests, concurrency=8, streams=streams)
    report = Report("T12-process", 1, faults, streams, expected)
    report.figures |= {"groups killed": len(faults), "the poison's end": str(error)}
    if not is_given_up or len(faults) > MAX_KILLED:
        report.unmet.append(f"the request was not given up after {len(faults)} groups were killed under it")
    return report
