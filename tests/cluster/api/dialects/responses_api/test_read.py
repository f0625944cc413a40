"""Which model goes on from a stored response, if it was asked for by an alias."""

from collections.abc import Mapping

import httpx

from cluster.api.app import build
from cluster.api.models.aliases import Alias
from cluster.api.models.model import Model, Models, ServedModel
from tests.cluster.api.routes.dialects.test_responses import Kept
from tests.cluster.api.scripted import ScriptedService, listening

SPLIT = {"steady": 0.5, "canary": 0.5}


def ask(kept: Kept, shares: Mapping[str, float], **fields: object) -> tuple[str, str]:
    """A gateway whose alias `demo` has these shares; the model that answers, and the answer's
    id.
    """
    service = ScriptedService()
    served = [ServedModel(Model(name=name, max_model_len=64, vocab_size=1000), service) for name in SPLIT]
    models = Models(served, {"demo": Alias(tuple(shares.items()))})
    with listening(build(service, models, kept=kept)) as port:
        body = {"model": "demo", **fields}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/responses", json=body).raise_for_status().json()
    return answer["model"], answer["id"]


def test_a_conversation_stays_with_its_model() -> None:
    """Whatever is said next, and whatever the weights are by then."""
    kept = Kept()
    chosen = set()
    for number in range(12):
        model, made = ask(kept, SPLIT, input=f"question {number}")
        chosen.add(model)
        assert ask(kept, SPLIT, input="more", previous_response_id=made)[0] == model
        assert ask(kept, SPLIT, input="more", previous_response_id=made, user="somebody")[0] == model
        less = SPLIT | {model: 1e-9}
        assert ask(kept, less, input="more", previous_response_id=made)[0] == model
        assert ask(kept, SPLIT, input="more", previous_response_id=made, model="canary")[0] == "canary"
    assert chosen == {*SPLIT}


def test_a_model_that_the_alias_has_left_does_not_answer() -> None:
    kept = Kept()
    _, made = ask(kept, {"canary": 1.0}, input="question")
    assert ask(kept, {"steady": 1.0}, input="more", previous_response_id=made)[0] == "steady"
