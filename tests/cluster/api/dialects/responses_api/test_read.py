"""Which model goes on from a stored response, if it was asked for by an alias."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self

import httpx

from cluster.api.app import build
from cluster.api.models.aliases import Alias
from cluster.api.models.model import Model, Models, ServedModel
from tests.cluster.api.routes.dialects.test_responses import Kept
from tests.cluster.api.scripted import ScriptedService, listening

SPLIT = {"steady": 0.5, "canary": 0.5}


class Gateways:
    """One for each way to share the alias `demo`, of one store."""

    def __init__(self) -> None:
        self._kept = Kept()
        self._ports: dict[tuple[tuple[str, float], ...], int] = {}
        self._running = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def ask(self, shares: Mapping[str, float], **fields: object) -> tuple[str, str]:
        """The model that answers, and the answer's id."""
        alias = tuple(shares.items())
        if alias not in self._ports:
            service = ScriptedService()
            served = [ServedModel(Model(name=name, max_model_len=64, vocab_size=1000), service) for name in SPLIT]
            models = Models(served, {"demo": Alias(alias)})
            self._ports[alias] = self._running.enter_context(listening(build(service, models, kept=self._kept)))
        url = f"http://127.0.0.1:{self._ports[alias]}/v1/responses"
        answer = httpx.post(url, json={"model": "demo", **fields}).raise_for_status().json()
        return answer["model"], answer["id"]


def test_a_conversation_stays_with_its_model() -> None:
    """Whatever is said next, and whatever the weights are by then."""
    chosen = set()
    with Gateways() as gateways:
        for number in range(12):
            model, made = gateways.ask(SPLIT, input=f"question {number}")
            chosen.add(model)
            more = {"input": "more", "previous_response_id": made}
            assert gateways.ask(SPLIT, **more)[0] == model
            assert gateways.ask(SPLIT, **more, user="somebody")[0] == model
            assert gateways.ask(SPLIT | {model: 1e-9}, **more)[0] == model
            assert gateways.ask(SPLIT, **more, model="canary")[0] == "canary"
    assert chosen == {*SPLIT}


def test_a_model_that_the_alias_has_left_does_not_answer() -> None:
    with Gateways() as gateways:
        _, made = gateways.ask({"canary": 1.0}, input="question")
        assert gateways.ask({"steady": 1.0}, input="more", previous_response_id=made)[0] == "steady"
