"""Requests that harm whoever computes them (T12): the neighbours must not notice, and the harm must
end.
"""

import asyncio
from pathlib import Path
from typing import Any

from cluster.chaos.client import ChaosClient
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import ChaosRequest
from tests.end_to_end.chaos.app import ANY_QUEUE, FOUR_RANKS, app_args, injected, running
from tests.end_to_end.chaos.freezes import num_recoveries
from tests.end_to_end.chaos.injected.sitecustomize import EXIT, RAISE
from tests.end_to_end.chaos.options import QUICK_STREAMS, Options
from tests.end_to_end.chaos.run import Deliver, Load, disturbed
from tests.end_to_end.fuzz.forms import hostile

NEIGHBOURS = 63
MAX_RESTARTS = 2  # that a request which kills processes may cost
INJECTED = Path(__file__).parent / "injected"


def poison_rows(options: Options) -> Report:
    """T12: a request without any token that could be sampled, 50 times beside 63 others: it alone
    fails, nothing restarts.
    """
    # The only token that it may have would end it before it is long enough.
    body = {"prompt": "poison", "min_tokens": 4, "allowed_token_ids": [7], "stop_token_ids": [7]}
    return _poison("T12-row", body, options.pick(options.faults, 50, 5), 0, options)


def poison_steps(options: Options) -> Report:
    """T12: a request whose every step raises, 50 times beside 63 others: it alone fails, nothing
    restarts.
    """
    return _poison("T12-step", {"prompt": [40, *3 * RAISE, 41]}, options.pick(options.faults, 50, 5), 0, options)


def poison_processes(options: Options) -> Report:
    """T12: a request whose every step ends a worker's process: at most 2 restarts, and it is not
    tried again.
    """
    return _poison("T12-process", {"prompt": [40, *3 * EXIT, 41]}, 1, MAX_RESTARTS, options)


def poison_forms(options: Options) -> Report:
    """T12: forms and tools that take long, are deep, wide or impossible, beside 63 others: each is
    answered or refused, nothing restarts.
    """
    bodies = [_asked(form) for form in hostile()]
    bodies += [_asked(_tool(form["guided_json"])) for form in hostile() if isinstance(form.get("guided_json"), dict)]
    bodies = bodies[:: 6 if options.quick else 1]
    load = Load(options.pick(options.streams, NEIGHBOURS, QUICK_STREAMS), seed=options.seed)
    with running(app_args(FOUR_RANKS | ANY_QUEUE, recovers=options.recovers)) as app:
        deliver = _send_forms(app.url, bodies)
        report = asyncio.run(disturbed("T12-form", app.url, load, num_faults=len(bodies), deliver=deliver))
        report.figures["restarts"] = restarts = num_recoveries(app)
    if restarts:
        report.unmet.append(f"{len(bodies)} forms cost {restarts} restarts")
    return report


def _asked(fields: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 8, "temperature": 0} | fields


def _tool(schema: dict[str, Any]) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return {"tools": [tool], "tool_choice": "required"}


def _send_forms(url: str, bodies: list[dict[str, Any]]) -> Deliver:
    """Two at a time. One counts as delivered when it was answered, or refused as a bad request."""

    async def deliver(faults: list[Fault]) -> None:
        waiting = iter(bodies)

        async def work() -> None:
            for body in waiting:
                sent = ChaosRequest(-1, "form", "/v1/chat/completions", body)
                stream = await client.stream(sent)
                if stream.status in (200, 400):
                    what = f"form: {stream.error or 'answered'}"
                    faults.append(Fault(what, stream.sent, interrupts=False))

        async with ChaosClient(url) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(work())
            tasks.create_task(work())

    return deliver


def _poison(name: str, body: dict[str, Any], num_faults: int, max_restarts: int, options: Options) -> Report:
    load = Load(options.pick(options.streams, NEIGHBOURS, QUICK_STREAMS), seed=options.seed)
    # Steps that fail again and again make all wait: no neighbour is to be refused for that.
    args = app_args(FOUR_RANKS | ANY_QUEUE, recovers=options.recovers, max_queue_seconds=0)
    with injected(INJECTED), running(args) as app:
        deliver = _send(app.url, body, num_faults)
        report = asyncio.run(disturbed(name, app.url, load, num_faults=num_faults, deliver=deliver))
        report.figures["restarts"] = restarts = num_recoveries(app)
    if restarts > max_restarts:
        report.unmet.append(
            f"{num_faults} poisoned requests cost {restarts} restarts, and at most {max_restarts} may be"
        )
    return report


def _send(url: str, body: dict[str, Any], num: int) -> Deliver:
    """A poisoned request counts as delivered when it has failed, as it must."""

    async def deliver(faults: list[Fault]) -> None:
        async with ChaosClient(url) as client:
            whole = body | {"model": await client.first_model(), "max_tokens": 8, "stream": True}
            for _ in range(num):
                stream = await client.stream(ChaosRequest(-1, "poison", "/v1/completions", whole))
                if stream.error is not None:
                    faults.append(Fault(f"poison: {stream.error}", stream.sent))

    return deliver
