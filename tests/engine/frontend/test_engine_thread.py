"""The thread of an engine: what it refuses, and how it goes on, or ends, when something fails."""

import asyncio
import logging
import math
import threading

import pytest

from engine.errors import EngineDead, Overloaded
from engine.request import Request, Resume
from engine.sampling_params import SamplingParams
from tests.engine.frontend.engines import PARAMS, collect, make


async def test_a_full_queue_refuses():
    engine = make(max_num_seqs=1, max_num_queued_reqs=2)
    gate = threading.Event()
    submit = engine._executor.submit
    engine._executor.submit = lambda request: (gate.wait(30), submit(request))[1]
    engine.start()
    try:
        for number in range(2):
            engine.add_request(Request(f"r{number}", [1], PARAMS))
        with pytest.raises(Overloaded, match="max_num_queued_reqs"):
            for number in range(2, 12):
                engine.add_request(Request(f"r{number}", [1], PARAMS))
        engine.add_request(Request("moved", [1], PARAMS, resume=Resume(1, [[5]], fingerprint="fp")))
    finally:
        gate.set()
        engine.shutdown()


async def test_shutdown_ends_streams_with_an_error():
    engine = make()
    engine.start()
    stream = engine.generate(Request("r", [5] * 40, SamplingParams(max_tokens=450, ignore_eos=True)))
    await anext(stream)
    stopping = asyncio.create_task(asyncio.to_thread(engine.shutdown))
    last = None
    async for output in stream:
        last = output
    await stopping
    assert last.finished and (last.error is None or "shut down" in last.error)
    with pytest.raises(EngineDead):
        await collect(engine, "late", [1])


async def test_a_lost_worker_is_replaced_and_streams_go_on(engine):
    undisturbed = (await collect(engine, "r", [9] * 9)).outputs[0].token_ids
    executor = engine._executor
    executor.crash_at = {engine.observer.stats().num_steps + 5}
    assert (await collect(engine, "r", [9] * 9)).outputs[0].token_ids == undisturbed
    assert engine.observer.stats().num_recoveries == 1


async def test_a_request_that_breaks_the_engines_add_fails_alone(engine):
    with pytest.raises(StopAsyncIteration):
        stream = engine.generate(Request("bad", [1, 2], PARAMS, cache_salt="\ud800"))
        last = await anext(stream)
        assert last.finished and "UnicodeEncodeError" in last.error
        await anext(stream)
    assert len((await collect(engine, "good", [1] * 5)).outputs[0].token_ids) == 20


async def test_an_engine_whose_turn_fails_ends_each_request_once(engine, caplog, monkeypatch):
    """Also those with a timeout, which passes later."""

    def fail(num_in_flight):
        raise RuntimeError("a bug of ours")

    stream = engine.generate(Request("r", [1, 2, 3], SamplingParams(max_tokens=450, ignore_eos=True), timeout=600.0))
    await anext(stream)
    with caplog.at_level(logging.ERROR, logger="squadron.engine"):
        monkeypatch.setattr(engine._thread.engine.scheduler, "schedule", fail)
        *_, last = [output async for output in stream]
        assert last.finished and "a bug of ours" in last.error
        with pytest.raises(EngineDead, match="a bug of ours"):
            await collect(engine, "late", [1])
    assert engine.controls.intermissions.seconds_left() == math.inf, "nothing is left to be done"
    assert len(caplog.messages) == 1
