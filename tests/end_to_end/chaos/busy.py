"""An engine replica that is busy, and nothing else (T8): it must not be taken for dead, nor keep
its neighbours waiting.
"""

import asyncio
import time

import httpx

from cluster.chaos.report import Fault, Report
from tests.end_to_end.chaos.app import App, app_args, injected, running
from tests.end_to_end.chaos.injected.sitecustomize import HOLD
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.poison import INJECTED
from tests.end_to_end.chaos.processes import ENGINE, find
from tests.end_to_end.chaos.run import Deliver, Load, disturbed

LONG_BYTES = 30 << 20
DEADLINE_SECONDS = 120.0


def hold_the_lock(options: Options) -> Report:
    """T8: the engine's process holds the interpreter's lock for 12 s: the streams go on, in the
    same process.
    """
    with injected(INJECTED), running(app_args({}, recovers=options.recovers)) as app:
        return _busy("T8-lock", app, {"/v1/completions": {"prompt": HOLD}}, 200, 1, options)


def send_long_prompts(options: Options) -> Report:
    """T8: prompts of 30 MiB, as a text and as a conversation, are refused; the streams beside them
    hardly notice.
    """
    text = "the quick brown fox " * (LONG_BYTES // 20)
    bodies = {
        "/v1/completions": {"prompt": text},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
    }
    with running(app_args({}, recovers=options.recovers)) as app:
        return _busy("T8-long", app, bodies, 400, options.pick(options.faults, 5, 1), options)


def _busy(name: str, app: App, bodies: dict[str, dict[str, object]], status: int, num: int, options: Options) -> Report:
    load = Load(options.pick(options.streams, 60, 20), concurrency=16, seed=options.seed)
    before = set(find(ENGINE))
    deliver = _send(app.url, bodies, status, num)
    report = asyncio.run(disturbed(name, app.url, load, num_faults=num * len(bodies), deliver=deliver))
    ended = before - set(find(ENGINE))
    if ended:
        report.unmet.append(f"engines that were only busy were taken for dead: {sorted(ended)}")
    return report


def _send(url: str, bodies: dict[str, dict[str, object]], status: int, num: int) -> Deliver:
    """Each body `num` times; it counts as delivered when it was answered as it must be."""

    async def deliver(faults: list[Fault]) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_SECONDS) as client:
            for _ in range(num):
                for path, body in bodies.items():
                    await asyncio.sleep(1.0)
                    at = time.monotonic()
                    answer = await client.post(path, json=body | {"model": "demo", "max_tokens": 1})
                    if answer.status_code == status:
                        faults.append(Fault(f"{path}: {status} after {time.monotonic() - at:.1f} s", at))

    return deliver
