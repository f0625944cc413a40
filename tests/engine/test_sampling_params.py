"""Every range is checked where the parameters are made, and the message names the value and the
limit.
"""

import math
from dataclasses import fields

import pytest

from engine.errors import InvalidRequest
from engine.sampling_params import RANGES, WITH_BEAMS, SamplingParams

REFUSED = [
    ({"n": 1.0}, "n", "1.0"),
    ({"temperature": 1e-7}, "temperature", "1e-07"),
    ({"temperature": 10**400}, "temperature", "1" + 400 * "0"),
    ({"top_k": -2}, "top_k", "-2"),
    ({"top_p": 0.0}, "top_p", "0.0"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty", "1e-300"),
    ({"seed": 2**63}, "seed", str(2**63)),
    ({"max_tokens": 4, "min_tokens": 5}, "min_tokens", "5"),
    ({"thinking_token_budget": -2}, "thinking_token_budget", "-2"),
    ({"stop": [""]}, "stop", "empty"),
    ({"stop": [1]}, "stop", "1"),
    ({"stop": ["x"] * 17}, "stop", "17"),
    ({"bad_words": ["x"] * 1025}, "bad_words", "1025"),
    ({"bad_words": ["x" * 257]}, "bad_words", "257"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "-1"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "empty"),
    ({"logit_bias": {3: 101.0}}, "logit_bias", "101"),
    ({"logit_bias": {-3: 1.0}}, "logit_bias", "-3"),
    ({"n": 4, "best_of": 3}, "best_of", "3"),
    ({"n": 4, "beam_width": 3}, "n", "4"),
    ({"beam_width": 2, "length_penalty": -1e5}, "length_penalty", "-100000.0"),
    ({"beam_width": 2, "temperature": 0.5}, "temperature", "0.5"),
]
# Values of fields that are no plain number.
OTHERWISE = {
    **{"best_of": 2, "min_tokens": 1, "logit_bias": {3: 1.0}},
    **{"stop": ("x",), "bad_words": ("x",), "allowed_token_ids": (3,)},
}


@pytest.mark.parametrize(("params", "param", "said"), REFUSED)
def test_out_of_range(params, param, said):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**params)
    assert caught.value.param == param
    assert param in caught.value.message and said in caught.value.message


@pytest.mark.parametrize(("name", "allowed"), RANGES.items())
def test_every_number_is_held_to_its_range(name, allowed):
    step = 1 if allowed.kind is int else 0.001
    beyond = [allowed.high + step, allowed.low - (step if allowed.closed else 0)]
    for value in [*beyond, math.nan, math.inf, True, "1"]:
        if name in ("top_k", "thinking_token_budget") and value == -1:
            continue  # no limit
        with pytest.raises(InvalidRequest) as caught:
            SamplingParams(**{name: value})
        assert caught.value.param == name
        assert repr(value) in caught.value.message
    for value in (allowed.high, allowed.low if allowed.closed else allowed.low + step):
        assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(
    "name",
    # A structured output is refused by the name that it came by (test_structured_outputs.py).
    [part.name for part in fields(SamplingParams) if part.name not in (*WITH_BEAMS, "structured_outputs")],
)
def test_beam_search_takes_no_other_sampling_field(name):
    value = OTHERWISE.get(name)
    if value is None:
        allowed = RANGES[name]
        value = allowed.high if allowed.high != getattr(SamplingParams(), name) else allowed.kind(allowed.high / 2)
    with pytest.raises(InvalidRequest, match=f"{name}=.* cannot be combined with beam search") as caught:
        SamplingParams(beam_width=2, **{name: value})
    assert caught.value.param == name


def test_the_edges_are_taken():
    params = SamplingParams(n=128, temperature=2, top_p=1, min_p=1, seed=-(2**63), logprobs=20, stop="x", top_k=-1)
    assert params.stop == ("x",) and params.top_k == 0


def test_a_seed_is_all_that_with_seed_changes():
    params = SamplingParams(temperature=0.5, stop="a")
    assert params.with_seed(7) == SamplingParams(temperature=0.5, stop="a", seed=7)
    assert params.seed is None
