"""From a caller's dict to a request."""

import pytest

from cluster.gateway.handle.read import read, request_id_of
from engine.request import ChatPrompt
from engine.sampling_params import SamplingParams


def test_a_request_has_an_id_whatever_is_wrong_with_it() -> None:
    assert request_id_of({"request_id": "mine", "n": 0}) == "mine"
    ids = {request_id_of(request) for request in ({}, {"request_id": 5}, "no dict")}
    assert len(ids) == 3 and all(made.startswith("handle-") for made in ids)


def test_values_that_json_cannot_hold() -> None:
    request = {"prompt": (1, 2), "stop": ("a", "b"), "logit_bias": {3: 1.0, "4": -1.0}, "stop_token_ids": (5,)}
    made = read(request, "r")
    params = SamplingParams(stop=("a", "b"), logit_bias={3: 1.0, 4: -1.0}, stop_token_ids=(5,))
    assert (made.prompt, made.params) == ([1, 2], params)


@pytest.mark.parametrize("priority", [0, 5, 2**31 - 1, None])
def test_priorities(priority: int | None) -> None:
    made = read({"prompt": [1, 2], "priority": priority}, "r")
    assert (made.prompt, made.priority) == ([1, 2], priority or 0)


def test_messages_are_those_of_http() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts, "name": None}]
    made = read({"messages": messages}, "r")
    assert made.prompt == ChatPrompt(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one\ntwo"}]
    )


def test_none_is_a_field_left_out() -> None:
    request = {
        "prompt": "x",
        "messages": None,
        "temperature": None,
        "stop": None,
        "cache_salt": None,
        "max_tokens": None,
    }
    made = read(request, "r")
    assert made.params == SamplingParams(max_tokens=None)
