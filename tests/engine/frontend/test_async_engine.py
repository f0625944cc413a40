"""Requests to an engine from any thread, in every form: answered, refused, forgotten."""

import asyncio
import threading
from contextlib import aclosing
from functools import partial

import pytest

from engine.errors import InvalidRequest, Overloaded
from engine.records.timeline import Timeline
from engine.request import ChatPrompt, Request
from tests.engine.frontend.engines import PARAMS, collect, idle, make
from tests.engine.support.objects import num_objects_of


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
