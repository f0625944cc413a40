"""What is known of an engine that runs."""

import asyncio

from engine.request import Request
from tests.engine.frontend.engines import PARAMS, collect


async def test_why_knows_a_finished_request(engine):
    engine.add_request(Request("mine", [1, 2], PARAMS))
    while True:
        try:
            parts = (await engine.observer.why("mine")).seconds
        except KeyError:
            continue
        if "decode" in parts and engine.observer.stats().num_requests_running == 0:
            break
    assert set(parts) == {"queue", "prefill", "decode"}


async def test_whether_it_sleeps_and_which_adapters_it_has_is_known(engine):
    assert (engine.observer.sleep_level, engine.observer.adapters) == (0, ([], []))
    for level in (2, 1):
        await asyncio.wrap_future(engine.controls.sleep(level))
        assert engine.observer.sleep_level == level
        await asyncio.wrap_future(engine.controls.wake_up())
        assert engine.observer.sleep_level == 0


async def test_a_question_nobody_waits_for_harms_nobody(engine):
    asking = asyncio.create_task(engine.observer.steps_after(-1, 1))
    await asyncio.sleep(0)
    asking.cancel()
    assert len((await collect(engine, "r", [1] * 5)).outputs[0].token_ids) == 20
