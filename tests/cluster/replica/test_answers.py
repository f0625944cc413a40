"""What a replica says of its engine: real engines on the demo checkpoint."""

import asyncio
import math
import threading
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.api.models.model import Model
from cluster.replica.answers import Answers
from engine.config import EngineConfig
from engine.errors import Overloaded
from engine.frontend.async_engine import AsyncEngine
from engine.outputs import RequestOutput
from engine.records.snapshot import Snapshot
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.worker.local_executor import LocalExecutor
from tests.engine.support.workloads import DEMO


@pytest.fixture
def engine() -> Iterator[AsyncEngine]:
    config = EngineConfig.create(
        model=DEMO, device="cpu", num_threads=1, kv_cache_memory_bytes=8 << 20, max_model_len=256
    )
    engine = AsyncEngine(config, LocalExecutor(config))
    engine.start()
    yield engine
    engine.shutdown()


async def test_a_started_engine_answers(engine: AsyncEngine) -> None:
    answers = Answers(engine, "one")
    assert await answers.probe() is None
    async for output in engine.generate(Request("mine", [1, 2], SamplingParams(max_tokens=3, ignore_eos=True))):
        assert output.error is None
    why = await answers.why("mine#1")  # the second that was generated in this process
    assert why is not None and why["seconds"]["decode"] >= 0
    assert await answers.why("never seen") is None
    stats = answers.stats()  # the questions were answered after the last step was counted
    assert (stats["num_requests_finished"], stats["num_generation_tokens"]) == (2, 4)
    model = Model(name="demo", **answers.model_info())
    assert (model.max_model_len, model.vocab_size) == (256, engine.model_config.vocab_size)
    assert model.text_limit is not None and model.special_ids


async def test_an_engine_that_cannot_answer_says_why(engine: AsyncEngine) -> None:
    engine.shutdown()
    why = await Answers(engine, "one").probe()
    assert why is not None and "shut down" in why


async def test_a_probe_that_gets_no_token_in_time_leaves_the_queue(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.replica.answers.PROBE_SECONDS", 2.0)  # in which it has come to the engine
    may_go_on = threading.Event()
    engine._thread.commands.post(may_go_on.wait)
    answers = Answers(engine, "one")
    assert await answers.probe() == "it gave no token within 2 s"
    may_go_on.set()
    async for output in engine.generate(Request("next", [1], SamplingParams(max_tokens=1, ignore_eos=True))):
        assert output.error is None
    await asyncio.wrap_future(engine.controls.pause("keep"))  # a turn later, when the figures are there
    assert answers.stats()["num_generation_tokens"] == 1, "that of the request alone"


async def test_an_engine_that_rests_says_so_at_once(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.replica.answers.PROBE_SECONDS", math.inf)
    answers, controls = Answers(engine, "one"), engine.controls
    await asyncio.wrap_future(controls.pause("keep"))
    assert await answers.probe() == "it is paused until it is told to resume"
    await asyncio.wrap_future(controls.sleep(1))
    assert await answers.probe() == "it sleeps until it is told to wake up"
    await asyncio.wrap_future(controls.wake_up())
    await asyncio.wrap_future(controls.resume())
    assert await answers.probe() is None


class Busy:
    """An engine that gives a probe no token, and whose steps end or do not, once between looks."""

    def __init__(self, *, computes: bool, is_full: bool) -> None:
        self.observer = self
        self.num_steps = 0
        self._computes, self._is_full = computes, is_full

    async def generate(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        if self._is_full:
            raise Overloaded("64 sequences wait already")
        await asyncio.Event().wait()
        yield RequestOutput(request.id, 0, [], [], finished=True)

    def rest(self) -> None:
        return None

    def stats(self) -> SimpleNamespace:
        self.num_steps += self._computes
        return SimpleNamespace(num_steps=self.num_steps)


@pytest.mark.parametrize("is_full", [False, True])
async def test_an_engine_with_much_to_compute_is_well(monkeypatch: pytest.MonkeyPatch, is_full: bool) -> None:
    """A probe behind requests that take longer than it may says nothing against the ranks."""
    monkeypatch.setattr("cluster.replica.answers.PROBE_SECONDS", 0.02 if not is_full else 60.0)
    monkeypatch.setattr("cluster.replica.answers.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("cluster.replica.answers.PROBE_STEPS", 1 if not is_full else 2)
    busy: Any = Busy(computes=True, is_full=is_full)
    assert await Answers(busy, "one").probe() is None


@pytest.mark.parametrize(
    ("is_full", "why"), [(False, "it gave no token"), (True, "its queue is full, and it ended no")]
)
async def test_an_engine_that_ends_no_step_is_not(monkeypatch: pytest.MonkeyPatch, is_full: bool, why: str) -> None:
    monkeypatch.setattr("cluster.replica.answers.PROBE_SECONDS", 0.02)
    monkeypatch.setattr("cluster.replica.answers.LOOK_SECONDS", 0.0)
    stuck: Any = Busy(computes=False, is_full=is_full)
    told = await Answers(stuck, "one").probe()
    assert told is not None and told.startswith(why)


async def test_a_view_is_told_also_while_the_engine_cannot_answer(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(engine, "one")
    assert await answers.probe() is None
    told = await answers.view()
    assert told is not None
    assert (told["replica"], told["block_size"], len(told["steps"])) == ("one", 16, 1)
    assert answers.worker_pids() == []

    async def never() -> Snapshot:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(engine.observer, "snapshot", never)
    later = await answers.view()
    assert later is not None and later["now"] > told["now"] and later | {"now": told["now"]} == told


async def test_an_engine_whose_steps_take_longer_than_a_look_is_seen(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.replica.answers.VIEW_SECONDS", 0.0)
    answers, ask, ends, num_asked = Answers(engine, "one"), engine.observer.snapshot, asyncio.Event(), 0

    async def at_the_steps_end() -> Snapshot:
        nonlocal num_asked
        num_asked += 1
        await ends.wait()
        return await ask()

    monkeypatch.setattr(engine.observer, "snapshot", at_the_steps_end)
    for _ in range(3):
        assert await answers.view() is None, "nothing is known yet"
    ends.set()
    async with asyncio.timeout(60):
        while (told := await answers.view()) is None:
            await asyncio.sleep(0.01)
    assert told["steps"] == [] and told["running"] == []
    assert num_asked == 2, "it is asked again once it has answered"
