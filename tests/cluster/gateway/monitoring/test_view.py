"""What a gateway shows of its engines: their reports, with what is in them."""

import asyncio
from typing import Any

import pytest

from cluster.gateway.monitoring import view as module
from cluster.gateway.monitoring.view import EngineView
from tests.cluster.gateway.monitoring.test_engine_figures import report


class Engines:
    """Answers with what it is given, once it is let."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.num_asked = 0

    async def ask_those_that_answer(self, question: str) -> list[dict[str, Any]]:
        assert question == "view"
        self.num_asked += 1
        await asyncio.sleep(0)
        return self.answers


async def test_each_replica_that_reports_is_told_with_its_view() -> None:
    engines = Engines({"replica": "b", "now": 1.0})
    reports = [report("b", 7), report("a", 5)]
    told = await EngineView("demo", engines, lambda: reports).now()  # type: ignore[arg-type]
    assert [(each["replica"], each["model"], each["stats"]["num_steps"]) for each in told] == [
        ("a", "demo", 5),
        ("b", "demo", 7),
    ]
    assert [each["view"] for each in told] == [None, {"replica": "b", "now": 1.0}]
    assert {"problem", "pid", "node", "is_leaving", "made"} <= told[0].keys()
    assert "totals" not in told[0] and "arithmetic" not in told[0]


async def test_many_who_look_cost_the_engines_no_more_than_one() -> None:
    engines = Engines({"replica": "a"})
    view = EngineView("demo", engines, lambda: [report("a", 1)])  # type: ignore[arg-type]
    answers = await asyncio.gather(*(view.now() for _ in range(50)))
    assert engines.num_asked == 1 and all(told["view"] == {"replica": "a"} for (told,) in answers)


async def test_a_replica_that_does_not_answer_is_told_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", -1.0)
    engines, reports = Engines({"replica": "a", "now": 1.0}), [report("a", 1)]
    view = EngineView("demo", engines, lambda: reports)  # type: ignore[arg-type]
    await view.now()
    engines.answers = []
    assert (await view.now())[0]["view"] == {"replica": "a", "now": 1.0}
    reports.clear()
    assert await view.now() == []
    reports.append(report("a", 1))
    assert (await view.now())[0]["view"] is None, "it was gone"
