"""Every range is checked where the parameters are made, and the message names the value and the
limit.
"""

import math

import pytest

from engine.errors import InvalidRequest
from engine.sampling_params import SamplingParams

REFUSED = [
    ({"n": 0}, "n", "0"),
    ({"n": 129}, "n", "129"),
    ({"n": True}, "n", "True"),
    ({"n": 1.0}, "n", "1.0"),
    ({"temperature": -0.01}, "temperature", "-0.01"),
    ({"temperature": 2.01}, "temperature", "2.01"),
    ({"temperature": math.nan}, "temperature", "nan"),
    ({"temperature": "1"}, "temperature", "'1'"),
    ({"top_p": 0.0}, "top_p", "0.0"),
    ({"top_p": 1.1}, "top_p", "1.1"),
    ({"top_k": -2}, "top_k", "-2"),
    ({"min_p": 1.5}, "min_p", "1.5"),
    ({"presence_penalty": 2.5}, "presence_penalty", "2.5"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "-2.5"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty", "1e-300"),
    ({"repetition_penalty": math.inf}, "repetition_penalty", "inf"),
    ({"seed": 2**63}, "seed", str(2**63)),
    ({"max_tokens": 0}, "max_tokens", "0"),
    ({"max_tokens": 4, "min_tokens": 5}, "min_tokens", "5"),
    ({"logprobs": 21}, "logprobs", "21"),
    ({"prompt_logprobs": -1}, "prompt_logprobs", "-1"),
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
    ({"beam_width": 2, "top_k": 4}, "top_k", "4"),
    ({"beam_width": 2, "length_penalty": -1e5}, "length_penalty", "-100000.0"),
    ({"beam_width": 2, "temperature": 0.5}, "temperature", "0.5"),
]


@pytest.mark.parametrize(("fields", "param", "said"), REFUSED)
def test_out_of_range(fields, param, said):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)
    assert caught.value.param == param
    assert param in caught.value.message and said in caught.value.message


def test_the_edges_are_taken():
    params = SamplingParams(n=128, temperature=2, top_p=1, min_p=1, seed=-(2**63), logprobs=20, stop="x", top_k=-1)
    assert params.stop == ("x",) and params.top_k == 0
