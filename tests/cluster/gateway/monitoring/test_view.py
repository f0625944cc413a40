"""What a gateway shows of its engines: their reports, with what is in those that are looked at."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from cluster.gateway.models.all_models import MOST_SEEN
from cluster.gateway.monitoring import view as module
from cluster.gateway.monitoring.view import EngineView
from cluster.replica.delta_channel.messages import EngineReport
from engine.records.view import NUM_CELLS, STEP_FIELDS, block_map
from tests.cluster.gateway.monitoring.test_engine_figures import report


class Engines:
    """Answers with what it is given for each replica, and counts; one without an answer waits."""

    def __init__(self, **answers: dict[str, Any] | None) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def ask_one(self, replica: str, question: str) -> dict[str, Any] | None:
        assert question == "view"
        self.asked.append(replica)
        await asyncio.sleep(0)
        if replica not in self.answers:
            await asyncio.Event().wait()
        return self.answers[replica]


def viewed(engines: Engines, reports: list[EngineReport]) -> EngineView:
    return EngineView("demo", engines, lambda: reports)  # type: ignore[arg-type]


async def test_all_replicas_are_told_and_those_looked_at_with_their_view() -> None:
    engines = Engines(b={"replica": "b", "now": 1.0})
    told = await viewed(engines, [report("b", 7), report("a", 5)]).now(["b"])
    assert [(each["replica"], each["model"], each["stats"]["num_steps"]) for each in told] == [
        ("a", "demo", 5),
        ("b", "demo", 7),
    ]
    assert [each["view"] for each in told] == [None, {"replica": "b", "now": 1.0}]
    assert [each["is_seen"] for each in told] == [False, True]
    assert engines.asked == ["b"], "nobody looks at the other one"
    assert {"problem", "pid", "node", "is_leaving", "made", "computes_prompts"} <= told[0].keys()
    assert "totals" not in told[0] and "arithmetic" not in told[0]


async def test_those_that_compute_prompts_come_last() -> None:
    reports = [replace(report("a", 5), computes_prompts=True), report("b", 7)]
    told = await viewed(Engines(a={"now": 1.0}), reports).now(["a"])
    assert [(each["replica"], each["computes_prompts"]) for each in told] == [("b", False), ("a", True)]
    assert told[1]["view"] == {"now": 1.0}


async def test_many_who_look_cost_the_engines_no_more_than_one() -> None:
    engines = Engines(a={"replica": "a"})
    view = viewed(engines, [report("a", 1)])
    answers = await asyncio.gather(*(view.now(["a"]) for _ in range(50)))
    assert engines.asked == ["a"] and all(told["view"] == {"replica": "a"} for (told,) in answers)


async def test_a_frozen_replica_makes_no_other_ones_view_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", -1.0)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    engines = Engines(a={"now": 1.0}, b={"now": 1.0})
    reports = [report("a", 1), report("b", 1)]
    view = viewed(engines, reports)
    assert not any(told["is_silent"] for told in await view.now(["a", "b"]))
    del engines.answers["a"]
    for now in (2.0, 3.0):
        engines.answers["b"] = {"now": now}
        frozen, well = await view.now(["a", "b"])
        assert (frozen["is_silent"], frozen["view"]) == (True, {"now": 1.0})
        assert (well["is_silent"], well["view"]) == (False, {"now": now})
    assert engines.asked.count("a") == 2, "it is not asked again before it has answered"
    reports.remove(reports[0])
    assert [told["replica"] for told in await view.now(["a", "b"])] == ["b"]
    await asyncio.sleep(0)
    assert {task.get_name() for task in asyncio.all_tasks()} == {asyncio.current_task().get_name()}  # type: ignore[union-attr]


async def test_a_replica_that_fails_is_told_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", -1.0)
    engines, reports = Engines(a={"now": 1.0}), [report("a", 1)]
    view = viewed(engines, reports)
    await view.now(["a"])
    engines.answers["a"] = None
    (told,) = await view.now(["a"])
    assert (told["is_silent"], told["view"]) == (True, {"now": 1.0})
    engines.answers["a"] = {"now": 2.0}
    (told,) = await view.now(["a"])
    assert (told["is_silent"], told["view"]) == (False, {"now": 2.0})
    reports.clear()
    assert await view.now(["a"]) == []
    reports.append(report("a", 1))
    engines.answers["a"] = None
    assert (await view.now(["a"]))[0]["view"] is None, "it was gone"


def busy(replica: str) -> dict[str, Any]:
    """The most that an engine of eight ranks with 256 sequences tells."""
    rng = np.random.default_rng(0)
    tables = rng.permutation(np.arange(1, 256 * 64 + 1, dtype=np.int32)).reshape(256, 64)
    step = (123456, 1, *[12345.67891] * 4, 256, 1024, 250, 0, 0, 0, [12.34] * 8)
    running = [
        {"request_id": f"chatcmpl-{'0' * 32}-{place}", "choice": 0, "phase": "decode", "num_prompt_tokens": 4096}
        | {"num_cached_tokens": 1024, "num_output_tokens": 1000, "num_blocks": 320, "seconds": 123.456}
        for place in range(64)
    ]
    blocks = msgspec.to_builtins(block_map(tables, [], 256 * 64 + 1))
    assert sum(count for _, count in blocks["cells"]) == NUM_CELLS
    return {"replica": replica, "now": 1.0, "step_fields": STEP_FIELDS, "steps": [step] * 256} | {
        "running": running,
        "swapped": running,
        "waiting": running[:16],
        "ended": [],
        "blocks": blocks,
    }


async def test_a_hundred_replicas_are_as_small_as_one_that_is_looked_at() -> None:
    names = [f"squadron#EngineDeployment#{place:08x}" for place in range(100)]
    view = viewed(Engines(**{name: busy(name) for name in names}), [report(name, 1) for name in names])
    whole = len(msgspec.json.encode(busy(names[0])))
    told = len(msgspec.json.encode(await view.now(names[:MOST_SEEN])))
    assert whole > 50_000
    assert told - MOST_SEEN * whole < 200_000, "2 kB for each replica"
