"""What trainers may ask by handle, and how what they may not is refused: never by an exception."""

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.api.models.model import Model, Models, ServedModel
from cluster.gateway.engines.changes import Changes
from cluster.gateway.handle import control
from cluster.weights.rest import RUNS


class Engines:
    """Of which none is there."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.record = SimpleNamespace(rest=SimpleNamespace(change=RUNS.after))

    async def change(self, question: str, *arguments: Any) -> list[Any]:
        self.told.append(arguments)
        return []


def models_of(engines: Any) -> Models:
    service: Any = None
    controller = Changes(engines, list, patience=1.0)
    return Models([ServedModel(Model(name="m", max_model_len=8, vocab_size=8), service, None, controller)])


@pytest.mark.parametrize(
    ("request_", "param", "code"),
    [
        (None, "path", "missing_required_parameter"),
        ({}, "path", "missing_required_parameter"),
        ("/new", None, "invalid_type"),
        ({"path": 7}, "path", "invalid_type"),
        ({"path": "/new", "weights": {}}, "path", "missing_required_parameter"),
        ({"weights": {}}, "weights", "invalid_type"),
        ({"weights": {"a": 1}}, "weights", "invalid_type"),
        ({"path": "/new", "version": 7}, "version", "invalid_value"),
        ({"path": "/new", "mode": ["wait"]}, "mode", "invalid_value"),
        ({"path": "/new", "model": "other"}, "model", "model_not_found"),
        ({"path": "/new", "folder": "/new"}, "folder", "unknown_parameter"),
    ],
)
async def test_updates_that_are_refused(request_: Any, param: str | None, code: str) -> None:
    engines = Engines()
    told = await control.update_weights(models_of(engines), request_)
    assert (told["error"]["param"], told["error"]["code"], told["num_replicas"]) == (param, code, 0)
    assert engines.told == []


@pytest.mark.parametrize(
    ("what", "request_", "param"),
    [
        ("sleep", {"level": 3}, "level"),
        ("sleep", {"level": [1]}, "level"),
        ("pause", {"mode": 7}, "mode"),
        ("wake_up", {"tags": 5}, "tags"),
        ("wake_up", {"tags": "weights"}, "tags"),
        ("wake_up", {"tags": [["weights"]]}, "tags"),
        ("resume", {"mode": "keep"}, "mode"),
    ],
)
async def test_controls_that_are_refused(what: Any, request_: Any, param: str) -> None:
    engines = Engines()
    told = await control.control(models_of(engines), what, request_)
    assert (told["error"]["param"], engines.told) == (param, [])


async def test_what_engines_are_told() -> None:
    engines = Engines()
    assert await control.control(models_of(engines), "wake_up", {"tags": ["weights"]}) == {"error": None}
    assert await control.control(models_of(engines), "resume", None) == {"error": None}
    awake = RUNS.after("resume")
    assert engines.told == [("control", awake, "wake_up", ["weights"]), ("control", awake, "resume")]
