"""Requests that harm whoever computes them (T12): the neighbours must not notice, and the harm must end."""

import asyncio
import contextlib
import signal
import time

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.command import undisturbed
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
BETWEEN_SECONDS = 3.0  # for the group to come back, and to compute for the poison


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
    """A long request alone, under which a worker is killed again and again; before and after it, others."""
    async with ChaosClient(url) as client:
        model = await client.first_model()
        requests = make_requests(8, model=model, max_tokens=64, seed=seed)
        expected = await undisturbed(client, requests, len(requests))
        poison = make_requests(1, model=model, max_tokens=1500, seed=seed)[0]
        poisoned = asyncio.create_task(client.stream(poison))
        faults = await _kill_until(poisoned)
        poisoned.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await poisoned
        streams: list[Stream] = []
        await client.send_all(requests, concurrency=len(requests), streams=streams)
    error = None if poisoned.cancelled() else poisoned.result().error
    report = Report("T12-process", 1, faults, streams, expected)
    report.figures |= {"groups killed": len(faults), "the poison's end": str(error)}
    if error is None or len(faults) > MAX_KILLED:
        report.unmet.append(f"the request was not given up after {len(faults)} groups were killed under it")
    return report


async def _kill_until(poisoned: "asyncio.Task[Stream]") -> list[Fault]:
    """Kill a worker that runs steps, as often as there is one, until the request has ended or one kill too many was made."""
    faults: list[Fault] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and len(faults) <= MAX_KILLED:
        await asyncio.wait([poisoned], timeout=BETWEEN_SECONDS)
        if poisoned.done():
            break
        running = find(f"{WORKER}.run")
        if running and send(running[0], signal.SIGKILL):
            faults.append(
                Fault(f"kill -9 {WORKER} {running[0]}, as the poison would", time.monotonic(), interrupts=False)
            )
    return faults
