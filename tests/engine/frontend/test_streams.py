"""Streams of many callers: each gets what it asked for, and leaves nothing behind when it goes."""

import asyncio

import pytest

from engine.frontend.streams import Streams
from engine.outputs import CompletionOutput, RequestOutput
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.engine.frontend.engines import collect, idle


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
    assert engine.observer.stats().num_requests_running == 0


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
    assert engine.observer.stats().num_requests_running == engine.observer.stats().num_requests_waiting == 0


async def test_a_closed_streams_request_is_aborted_before_its_caller_goes_on():
    added, aborted = [], []
    streams = Streams(lambda request: added.append(request.id), aborted.append)
    stream = streams.generate(Request("r", [1], SamplingParams()))
    first = asyncio.ensure_future(anext(stream))
    while not added:
        await asyncio.sleep(0.001)
    streams.deliver([RequestOutput(added[0], 1, [1], [CompletionOutput(0, "x", [5])], finished=False)])
    assert (await first).request_id == "r"
    await stream.aclose()
    assert aborted == added
