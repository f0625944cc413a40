"""Streams of many callers on one engine thread: they get what they asked for, and leave nothing
behind when they go.
"""

import asyncio
import threading
from contextlib import aclosing
from functools import partial

import pytest

from engine.config import EngineConfig
from engine.errors import EngineDead, InvalidRequest, Overloaded
from engine.executor import Capacity
from engine.frontend.async_engine import AsyncEngine
from engine.outputs import Accumulator
from engine.records.timeline import Timeline
from engine.request import ChatPrompt, Request, Resume
from engine.sampling_params import SamplingParams
from tests.doubles.history_executor import HistoryExecutor
from tests.engine.support.objects import num_objects_of
from tests.engine.support.workloads import DEMO, MODEL

PARAMS = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)


def make(**overrides):
    executor = HistoryExecutor(Capacity(500, 0), MODEL.vocab_size, depth=2, runs_ahead=True)
    return AsyncEngine(
        EngineConfig.create(**{"model": DEMO, "max_num_seqs": 8, "max_num_queued_reqs": 0, **overrides}), executor
    )


@pytest.fixture
def engine():
    engine = make()
    engine.start()
    yield engine
    engine.shutdown()


async def collect(engine, request_id, prompt, params=PARAMS):
    total = Accumulator()
    async for output in engine.generate(Request(request_id, prompt, params)):
        assert output.request_id == request_id
        total.add(output)
    return total.last


async def idle(engine):
    while engine.stats().num_free_gpu_blocks < engine.stats().num_gpu_blocks:
        await engine.trace()  # an answer of the engine's thread: at least a turn has passed


async def test_many_streams_each_get_their_own(engine):
    alone = [(await collect(engine, "x", [n + 1] * 9)).outputs[0].token_ids for n in range(20)]
    together = await asyncio.gather(*(collect(engine, f"r{n}", [n + 1] * 9) for n in range(20)))
    assert [output.outputs[0].token_ids for output in together] == alone


async def test_equal_ids_are_independent(engine):
    first, second = await asyncio.gather(collect(engine, "same", [1] * 5), collect(engine, "same", [2] * 7))
    assert first.prompt_token_ids == [1] * 5 and second.prompt_token_ids == [2] * 7
    assert first.outputs[0].token_ids != second.outputs[0].token_ids


async def test_leaving_a_stream_frees_its_blocks(engine):
    stream = engine.generate(Request("r", [5] * 40, SamplingParams(max_tokens=400, ignore_eos=True)))
    await anext(stream)
    await stream.aclose()
    await asyncio.wait_for(idle(engine), 10)
    assert engine.stats().num_requests_running == 0


async def test_requests_leave_nothing_behind(monkeypatch):
    """But for what is kept of the last ones."""
    monkeypatch.setattr("engine.records.recorder.NUM_FINISHED_KEPT", 8)
    monkeypatch.setattr("engine.records.recorder.Timeline", partial(Timeline, capacity=8))
    engine = make()
    engine.start()

    async def serve(num):
        """Objects there are after so many requests."""
        for number in range(num):
            async with aclosing(engine.generate(Request(f"r{number}", [number + 1] * 40, PARAMS))) as stream:
                async for _ in stream:
                    if number % 2:
                        break
        await asyncio.wait_for(idle(engine), 10)
        return num_objects_of("engine")

    try:
        before = await serve(40)
        grown = await serve(40) - before
        assert grown.total() < 20, grown  # the last request's may be there still
    finally:
        engine.shutdown()


async def test_prompts_may_be_text_ids_or_messages(engine):
    text = await collect(engine, "r", "What is Squadron?")
    chat = await collect(engine, "r", ChatPrompt([{"role": "user", "content": "What is Squadron?"}]))
    assert text.prompt == "What is Squadron?" and text.prompt_token_ids == engine.tokenizer.encode("What is Squadron?")
    assert len(chat.prompt_token_ids) > len(text.prompt_token_ids)


async def test_a_refused_request_raises_and_disturbs_nobody(engine):
    neighbour = asyncio.create_task(collect(engine, "good", [1] * 5))
    with pytest.raises(InvalidRequest):
        await collect(engine, "bad", [1] * 5000)
    assert len((await neighbour).outputs[0].token_ids) == 20


async def test_why_knows_a_finished_request(engine):
    engine.add_request(Request("mine", [1, 2], PARAMS))
    while True:
        try:
            parts = await engine.why("mine")
        except KeyError:
            continue
        if "decode" in parts and engine.stats().num_requests_running == 0:
            break
    assert set(parts) == {"queue", "prefill", "decode"}


async def test_a_full_queue_refuses_by_tokens_before_it_tokenizes(monkeypatch):
    engine = make(max_num_seqs=1, max_num_queued_tokens=100)
    gate = threading.Event()
    submit = engine._executor.submit
    engine._executor.submit = lambda request: (gate.wait(30), submit(request))[1]
    engine.start()
    try:
        engine.add_request(Request("first", [1] * 40, PARAMS))
        monkeypatch.setattr("engine.frontend.async_engine.arrive", None)
        with pytest.raises(Overloaded, match="max_num_queued_tokens"):  # the cache holds 8,000
            engine.add_request(Request("long", "word " * 8000, PARAMS))
    finally:
        gate.set()
        engine.shutdown()


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
    executor.crash_at = {engine.stats().num_steps + 5}
    assert (await collect(engine, "r", [9] * 9)).outputs[0].token_ids == undisturbed
    assert engine.stats().num_recoveries == 1


async def test_a_question_nobody_waits_for_harms_nobody(engine):
    asking = asyncio.create_task(engine.trace())
    await asyncio.sleep(0)
    asking.cancel()
    assert len((await collect(engine, "r", [1] * 5)).outputs[0].token_ids) == 20


async def test_a_request_that_breaks_the_engines_add_fails_alone(engine):
    with pytest.raises(StopAsyncIteration):
        stream = engine.generate(Request("bad", [1, 2], PARAMS, cache_salt="\ud800"))
        last = await anext(stream)
        assert last.finished and "UnicodeEncodeError" in last.error
        await anext(stream)
    assert len((await collect(engine, "good", [1] * 5)).outputs[0].token_ids) == 20


async def test_going_away_while_the_prompt_is_tokenized_leaves_nothing(engine):
    for _ in range(20):
        params = SamplingParams(max_tokens=300, ignore_eos=True)
        stream = engine.generate(Request("r", "What is Squadron? " * 10, params))
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    await collect(engine, "last", [1])  # behind all the adds and aborts
    await asyncio.wait_for(idle(engine), 10)
    assert engine.stats().num_requests_running == engine.stats().num_requests_waiting == 0
