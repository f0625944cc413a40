"""What trainers may ask by handle, and how what they may not is refused: never by an exception."""

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.api.models.adapters import Adapters
from cluster.api.models.aliases import Alias
from cluster.api.models.model import Model, Models, ServedModel
from cluster.gateway.engines.changes import Changes
from cluster.gateway.handle import control
from cluster.replica.refusals.refusal import Refusal
from cluster.weights.groups.messages import Offer
from cluster.weights.rest import RUNS
from engine.errors import InvalidRequest
from engine.request import Adapter


class Engines:
    """Of which none is there."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.record = SimpleNamespace(rest=SimpleNamespace(change=RUNS.after))
        self.refusal: Refusal | None = None  # of what is offered

    async def ask_any(self, question: str, what: str, asked: Any) -> Refusal | None:
        assert (question, what) == ("change", "check_offer")
        return self.refusal

    async def change(self, question: str, *arguments: Any) -> list[Any]:
        self.told.append(arguments)
        return []


def models_of(engines: Any) -> Models:
    service: Any = None
    controller = Changes(engines, list, patience=1.0)
    adapters = {"m": Adapters([Adapter("mine", "/adapters/mine", "00", 8)]), "n": Adapters()}
    served = [
        ServedModel(Model(name=name, max_model_len=8, vocab_size=8, adapters=own), service, None, controller)
        for name, own in adapters.items()
    ]
    return Models(served, aliases={"both": Alias((("m", 1.0), ("n", 1.0))), "other name": Alias((("n", 1.0),))})


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
        ({"path": "/new", "model": 1}, "model", "invalid_type"),  # not the first model's
        ({"path": "/new", "model": ["n"]}, "model", "invalid_type"),
        ({"path": "/new", "model": "both"}, "model", "invalid_value"),  # nor one of these by chance
        ({"path": "/new", "model": "mine"}, "model", "invalid_value"),  # an adapter's
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
        ("sleep", {"model": 1}, "model"),
        ("sleep", {"model": "both"}, "model"),
        ("sleep", {"model": "mine"}, "model"),
    ],
)
async def test_controls_that_are_refused(what: Any, request_: Any, param: str) -> None:
    engines = Engines()
    told = await control.control(models_of(engines), what, request_)
    assert (told["error"]["param"], engines.told) == (param, [])


class Groups:
    """Of which none receives what it was promised."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    async def receive(self, offer: Offer) -> Any:
        raise InvalidRequest("tensor a has not come", param="group_name", code="weights_group_failed")

    async def close(self, group_name: str) -> None:
        self.closed.append(group_name)


@pytest.mark.parametrize(
    ("is_refused", "closed"), [(True, ["w"]), (False, [])], ids=["before it was to receive", "while it received"]
)
async def test_a_group_of_an_update_that_fails_is_closed_unless_it_may_be_another_by_now(
    is_refused: bool, closed: list[str]
) -> None:
    """One that fails while it receives is closed where that is known."""
    engines, groups = Engines(), Groups()
    engines.refusal = Refusal.of(InvalidRequest("no such tensor")) if is_refused else None
    engines.record.groups = groups
    request = {"tensors": {"a": {"dtype": "bfloat16", "shape": [1]}}, "group_name": "w"}
    told = await control.update_weights(models_of(engines), request)
    assert told["error"]["message"] == ("no such tensor" if is_refused else "tensor a has not come")
    assert groups.closed == closed


async def test_what_engines_are_told() -> None:
    engines = Engines()
    assert await control.control(models_of(engines), "wake_up", {"tags": ["weights"]}) == {"error": None}
    assert await control.control(models_of(engines), "resume", None) == {"error": None}
    awake = RUNS.after("resume")
    assert engines.told == [("control", awake, "wake_up", ["weights"]), ("control", awake, "resume")]
