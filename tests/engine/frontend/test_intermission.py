"""Pauses, other weights and sleep, between the steps of an engine on the history executor."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator

import pytest

from engine.errors import DEADLINE_EXCEEDED, FINGERPRINT_CHANGED, EngineDead, InvalidConfig, InvalidRequest
from engine.executor import Capacity, Weights
from engine.frontend.async_engine import AsyncEngine
from engine.outputs import RequestOutput
from engine.request import Request, Resume
from engine.sampling_params import SamplingParams
from tests.doubles.history_executor import HistoryExecutor
from tests.engine.frontend.engines import PARAMS, collect, idle, make

LONG = SamplingParams(max_tokens=400, seed=1, ignore_eos=True)
BEAMS = SamplingParams(max_tokens=270, beam_width=8, temperature=0.0, ignore_eos=True)  # 144 blocks
NEW = Weights("new", "digest")
SECONDS = 120


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    made = make()
    made.start()
    yield made
    await asyncio.to_thread(made.shutdown)


async def begun(engine: AsyncEngine, request_id: str, params: SamplingParams = LONG) -> "asyncio.Task":
    """A request that has tokens."""
    task = asyncio.create_task(collect(engine, request_id, [1, 2, 3], params))
    async with asyncio.timeout(SECONDS):
        while not engine.observer.stats().num_requests_running:
            await engine.observer.steps_after(-1, 1)
    return task


async def done(future) -> None:
    await asyncio.wait_for(asyncio.wrap_future(future), SECONDS)


async def held(engine: AsyncEngine) -> None:
    """Until a request is."""
    async with asyncio.timeout(SECONDS):
        while not engine.controls.intermissions._held:
            await engine.observer.steps_after(-1, 1)


async def test_requests_that_are_kept_go_on_where_they_were(engine: AsyncEngine) -> None:
    expected = (await collect(engine, "alone", [1, 2, 3], LONG)).outputs
    task = await begun(engine, "kept")
    await done(engine.controls.pause("keep"))
    later = asyncio.create_task(collect(engine, "later", [4], PARAMS))
    await engine.observer.steps_after(-1, 1)  # figures are those of the last turn, in whose midst the pause began
    steps = engine.observer.stats().num_steps
    for _ in range(20):
        await engine.observer.steps_after(-1, 1)  # a turn of the engine's thread
    assert (engine.observer.stats().num_steps, task.done(), later.done()) == (steps, False, False)
    await done(engine.controls.update_weights(NEW))
    assert engine.observer.weights == NEW
    assert (engine.controls.is_paused, task.done()) == (True, False)
    await done(engine.controls.resume())
    assert (await task).outputs == expected
    assert (await later).outputs[0].finish_reason == "length"


async def test_requests_that_are_waited_for_end_before_newcomers_begin(engine: AsyncEngine) -> None:
    task = await begun(engine, "first")
    updated = asyncio.wrap_future(engine.controls.update_weights(NEW, "wait"))
    later = asyncio.create_task(collect(engine, "later", [4], PARAMS))
    ended: list[str] = []
    for name, each in (("update", updated), ("later", later)):
        each.add_done_callback(lambda _, name=name: ended.append(name))
    await asyncio.wait_for(updated, SECONDS)
    await engine.observer.steps_after(-1, 1)  # figures are those of the last turn
    assert engine.observer.stats().num_steps >= LONG.max_tokens, "it has not waited"
    await asyncio.wait_for(asyncio.gather(task, later), SECONDS)
    assert ended == ["update", "later"]
    assert task.result().outputs[0].finish_reason == "length"


async def test_requests_that_are_aborted_end_with_what_they_have(engine: AsyncEngine) -> None:
    task = await begun(engine, "aborted", SamplingParams(max_tokens=400, seed=1, ignore_eos=True, n=2))
    await done(engine.controls.pause("abort"))
    output = await asyncio.wait_for(task, SECONDS)
    assert [choice.finish_reason for choice in output.outputs] == ["abort", "abort"]
    assert output.error is None
    await done(engine.controls.resume())
    assert (await collect(engine, "next", [1], PARAMS)).outputs[0].finish_reason == "length"


@pytest.mark.parametrize("mode", ["wait", "keep"])
async def test_a_pause_that_still_waits_is_over_when_it_is_resumed(engine: AsyncEngine, mode: str) -> None:
    task = await begun(engine, "running")
    paused = engine.controls.pause(mode)
    await done(engine.controls.resume())
    await done(paused)
    later = await asyncio.wait_for(collect(engine, "next", [1], PARAMS), SECONDS)
    assert later.outputs[0].finish_reason == "length"
    assert (await asyncio.wait_for(task, SECONDS)).outputs[0].finish_reason == "length"
    assert not engine.controls.is_paused


async def test_whoever_no_longer_waits_for_a_resume_ends_nobody_elses_request(engine: AsyncEngine) -> None:
    await done(engine.controls.pause("keep"))
    is_blocking = threading.Event()
    engine._thread.commands.post(is_blocking.wait)
    resumed = engine.controls.resume()
    assert resumed.cancel()
    is_blocking.set()
    assert (await collect(engine, "next", [1], PARAMS)).outputs[0].finish_reason == "length"
    engine.check_health()


async def test_a_request_that_is_held_can_be_aborted(engine: AsyncEngine) -> None:
    await done(engine.controls.pause("keep"))
    task = asyncio.create_task(collect(engine, "held", [1], PARAMS))
    await held(engine)
    task.cancel()
    async with asyncio.timeout(SECONDS):
        while engine.controls.intermissions._held:
            await engine.observer.steps_after(-1, 1)
    await done(engine.controls.resume())
    assert (await collect(engine, "next", [1], PARAMS)).finished


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_timeout_that_passes_in_a_pause_ends_its_request(engine: AsyncEngine, *, is_held: bool) -> None:
    """Of a request that is kept and of one that came later, though nobody asks the engine
    anything.
    """
    has_begun = asyncio.Event()

    async def last_output() -> RequestOutput:
        async for output in engine.generate(Request("late", [1, 2, 3], LONG, timeout=0.3)):
            has_begun.set()
            last = output
        return last

    if is_held:
        await done(engine.controls.pause("keep"))
    task = asyncio.create_task(last_output())
    if not is_held:
        await asyncio.wait_for(has_begun.wait(), SECONDS)
        await done(engine.controls.pause("keep"))
    output = await asyncio.wait_for(task, SECONDS)
    assert engine.controls.is_paused
    assert output.error_code == DEADLINE_EXCEEDED
    assert output.error == "its answer was not complete within its timeout (0.3 s were left here)"
    await done(engine.controls.resume())
    assert (await collect(engine, "next", [4], PARAMS)).outputs[0].finish_reason == "length"
    await idle(engine)
    assert engine.controls.intermissions.seconds_left() == math.inf


async def test_cached_prefixes_of_other_weights_are_not_found(engine: AsyncEngine) -> None:
    prompt = list(range(1, 65))
    await collect(engine, "first", prompt)
    assert (await collect(engine, "again", prompt)).num_cached_tokens == 48
    await done(engine.controls.update_weights(NEW))
    assert (await collect(engine, "anew", prompt)).num_cached_tokens == 0


async def test_weights_that_a_rank_refuses_change_nothing(engine: AsyncEngine) -> None:
    loaded: list[Weights | None] = []

    def load(weights: Weights | None) -> Capacity:
        loaded.append(weights)
        capacity = engine._executor.restart()
        if weights == NEW:
            raise InvalidConfig("tensor x is missing")
        return capacity

    engine._executor.load = load
    expected = (await collect(engine, "before", [1, 2, 3], PARAMS)).outputs
    with pytest.raises(InvalidConfig, match="tensor x is missing"):
        await done(engine.controls.update_weights(NEW))
    assert (loaded, engine.observer.weights) == ([NEW, None], None)
    assert (await collect(engine, "after", [1, 2, 3], PARAMS)).outputs == expected


async def test_an_engine_that_has_no_weights_left_is_dead(engine: AsyncEngine) -> None:
    def load(weights: Weights | None) -> Capacity:
        engine._executor.restart()
        raise InvalidConfig(f"the folder of {weights} is gone")

    engine._executor.load = load
    task = await begun(engine, "running")
    with pytest.raises(EngineDead, match="the folder of None is gone"):
        await done(engine.controls.update_weights(NEW, "keep"))
    assert "the folder of None is gone" in ((await task).error or "")
    with pytest.raises(EngineDead):
        await done(engine.controls.pause())


async def test_sleep_and_its_tags(engine: AsyncEngine) -> None:
    expected = (await collect(engine, "before", [1, 2, 3], PARAMS)).outputs
    await done(engine.controls.sleep(2))
    assert engine.controls.is_sleeping
    task = asyncio.create_task(collect(engine, "later", [1, 2, 3], PARAMS))
    await done(engine.controls.wake_up(["weights"]))
    await done(engine.controls.update_weights(NEW))
    assert (engine.controls.is_sleeping, task.done()) == (True, False)
    await done(engine.controls.wake_up(["kv_cache"]))
    assert not engine.controls.is_sleeping
    assert (await asyncio.wait_for(task, SECONDS)).outputs == expected


async def test_an_engine_that_starts_asleep_has_nothing_on_a_device_until_it_wakes_up(engine: AsyncEngine) -> None:
    """Requests wait for it, also such as its smallest cache would be too small for."""
    expected = (await collect(engine, "before", [1, 2, 3], BEAMS)).outputs
    later = make(max_num_queued_reqs=8)
    executor = later._executor
    assert isinstance(executor, HistoryExecutor)
    later.start(sleep_level=2)
    try:
        assert (later.controls.is_sleeping, later.observer.fingerprint) == (True, "")
        task = asyncio.create_task(collect(later, "later", [1, 2, 3], BEAMS))
        await held(later)
        await done(later.controls.wake_up(["weights"]))
        await done(later.controls.sleep(1))
        await done(later.controls.wake_up(["kv_cache"]))
        assert (executor.num_starts, later.observer.stats().num_steps, task.done()) == (0, 0, False)
        told: list[str] = []
        await done(later.controls.wake_up(awake=lambda: told.append(later.observer.fingerprint)))
        assert (executor.num_starts, later.controls.is_sleeping) == (1, False)
        assert told == [engine.observer.fingerprint], "before the first token"
        assert (await asyncio.wait_for(task, SECONDS)).outputs == expected
    finally:
        await asyncio.to_thread(later.shutdown)


async def test_an_idle_engine_that_sleeps_wants_no_other_beside_it(engine: AsyncEngine) -> None:
    """Nor does one that starts asleep, whose cache has no size yet."""
    later = make()
    later.start(sleep_level=1)
    try:
        await collect(engine, "r", [1, 2, 3])
        await done(engine.controls.sleep(2))
        for each in (engine, later):
            assert each.controls.is_sleeping
            assert each.observer.load() == 0
    finally:
        await asyncio.to_thread(later.shutdown)


async def test_what_is_held_counts_as_load(engine: AsyncEngine) -> None:
    """Or autoscaling would end the engine just as it wakes up. Of an engine that has been awake the
    cache's size is known.
    """
    later = make()
    later.start(sleep_level=1)
    try:
        await done(engine.controls.sleep(1))
        for each in (engine, later):
            max_num_seqs = each.config.max_num_seqs
            prompt = [1] * 200
            task = asyncio.create_task(collect(each, "held", prompt, PARAMS))
            await held(each)
            blocks = each.observer.stats().num_gpu_blocks if each is engine else math.inf
            tokens = len(prompt) / (blocks * each.config.block_size)
            assert each.observer.load() == max(1 / max_num_seqs, tokens) > 0
            task.cancel()
            async with asyncio.timeout(SECONDS):
                while each.observer.load():
                    await each.observer.steps_after(-1, 1)
            task = asyncio.create_task(collect(each, "next", prompt, PARAMS))
            await held(each)
            await done(each.controls.wake_up())
            await asyncio.wait_for(task, SECONDS)
            await each.observer.steps_after(-1, 1)  # figures are those of the last turn
            assert each.observer.load() == 0
    finally:
        await asyncio.to_thread(later.shutdown)


async def test_an_engine_that_starts_asleep_begins_with_the_weights_that_it_is_given() -> None:
    engine = make()
    assert isinstance(engine._executor, HistoryExecutor)
    engine.start(sleep_level=1)
    try:
        await done(engine.controls.update_weights(NEW))
        assert (engine.controls.is_sleeping, engine.observer.weights) == (True, NEW)
        assert engine._executor.num_starts == 0, "which would take the memory of whoever had it sleep"
        await done(engine.controls.wake_up())
        assert (engine._executor.num_starts, engine._executor.weights) == (1, NEW)
        assert (await collect(engine, "next", [1], PARAMS)).outputs[0].finish_reason == "length"
    finally:
        await asyncio.to_thread(engine.shutdown)


async def test_an_engine_that_cannot_start_when_it_wakes_up_is_dead() -> None:
    engine = make()
    assert isinstance(engine._executor, HistoryExecutor)
    engine._executor.capacity = Capacity(20, 0)
    engine.start(sleep_level=1)
    try:
        task = asyncio.create_task(collect(engine, "waits", [1], PARAMS))
        await held(engine)
        with pytest.raises(EngineDead, match="does not fit a cache of 20 blocks"):
            await done(engine.controls.wake_up())
        assert "does not fit" in ((await asyncio.wait_for(task, SECONDS)).error or "")
        assert engine.is_dead
    finally:
        await asyncio.to_thread(engine.shutdown)


async def test_tokens_of_another_fingerprint_are_not_gone_on_from(engine: AsyncEngine) -> None:
    """Also where the request was let in before the weights changed."""
    told = []
    engine._on_outputs = told.extend
    request = Request("r", [1], PARAMS, resume=Resume(1, [[5]], [0.0], "fp_other"))
    engine.add_request(request)
    async with asyncio.timeout(SECONDS):
        while not told:
            await engine.observer.steps_after(-1, 1)
    assert [(output.request_id, output.error_code) for output in told] == [("r", FINGERPRINT_CHANGED)]


async def test_arguments_that_there_are_not(engine: AsyncEngine) -> None:
    with pytest.raises(InvalidRequest, match="mode='later' is none of abort, wait, keep"):
        engine.controls.pause("later")
    with pytest.raises(InvalidRequest, match="level=3 is neither 1 nor 2"):
        engine.controls.sleep(3)
    with pytest.raises(InvalidRequest, match="tags has 'x', which is none of weights, kv_cache"):
        engine.controls.wake_up(["x"])
