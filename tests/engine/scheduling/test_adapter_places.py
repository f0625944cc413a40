"""A step has places for `max_loras` adapters: who waits for one holds up no others, and gets it."""

import random

import pytest

from engine.core.llm_engine import LLMEngine
from engine.request import Adapter, Share
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, make_engine


def engine_of(max_loras: int, **overrides: object) -> LLMEngine:
    return make_engine(Knobs(overrides={"enable_lora": True, "max_loras": max_loras, **overrides}))


def add(engine: LLMEngine, name: str, adapter: str = "", max_tokens: int = 4, key: str | None = None) -> None:
    """`adapter`: the name of one; none if it is empty."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    options = {"adapter": Adapter(adapter, "folder", adapter * 8, 8)} if adapter else {}
    add_request(engine, name, [1, 2, 3], params, share=Share(key), **options)


def running(engine: LLMEngine) -> list[str]:
    return [lane.group.request.id for lane in engine.scheduler.queues.running]


def finished(engine: LLMEngine) -> list[str]:
    """The requests that a step ends."""
    return [output.request_id for output in engine.step() if output.finished]


def run_out(engine: LLMEngine) -> list[str]:
    """The requests, as they end."""
    ended: list[str] = []
    for _ in range(5000):
        if not engine.has_unfinished_requests():
            return ended
        ended += finished(engine)
    raise AssertionError(f"{len(ended)} have ended, and nothing goes on")


def test_lanes_without_an_adapter_pass_one_that_waits_for_its_place() -> None:
    engine = engine_of(2)
    for name, adapter in [("1", "a"), ("2", "b"), ("3", "c"), ("4", ""), ("5", "")]:
        add(engine, name, adapter)
    engine.step()
    assert running(engine) == ["1", "2", "4", "5"]


def test_who_came_later_keeps_no_place_from_one_that_waits() -> None:
    """Nor do adapters that already have one: with ever more requests for them it would never be
    free.
    """
    engine = engine_of(1)
    add(engine, "first", "a")
    engine.step()
    add(engine, "waits", "b")
    ended: list[str] = []
    for number in range(20):
        add(engine, f"more {number}", "a")
        add(engine, f"base {number}")
        ended += finished(engine)
    assert ended.index("waits") < min(ended.index(name) for name in ended if name.startswith("more"))
    assert any(name.startswith("base") for name in ended[: ended.index("waits")])


def test_a_key_whose_turn_it_is_waits_for_the_place_of_another() -> None:
    """Which gets it though it is not its turn: nothing else would ever run."""
    engine = engine_of(1)
    add(engine, "past", key="one", max_tokens=30)
    assert run_out(engine) == ["past"]
    add(engine, "hog", key="other")
    add(engine, "older", "a", key="one")
    add(engine, "newer", "b", key="other")
    assert run_out(engine) == ["hog", "older", "newer"]


@pytest.mark.parametrize("seed", range(20))
def test_all_are_answered(seed: int) -> None:
    rng = random.Random(seed)
    engine = engine_of(rng.choice((1, 2, 3)), num_gpu_blocks_override=rng.choice((20, 60)), max_num_seqs=6)
    names = [f"r{number}" for number in range(60)]
    ended: list[str] = []
    for name in names:
        add(engine, name, rng.choice(("", "", "a", "b", "c", "d", "e")), rng.randint(1, 40), rng.choice("xy"))
        if rng.random() < 0.6:
            ended += finished(engine)
        adapters = {lane.group.request.adapter for lane in engine.scheduler.queues.running} - {None}
        assert len(adapters) <= engine.config.max_loras
    assert sorted(ended + run_out(engine)) == sorted(names)
