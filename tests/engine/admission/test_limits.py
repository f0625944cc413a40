"""What can never run is refused when it comes."""

import pytest

from engine.errors import InvalidRequest
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import EOS, VOCAB, Knobs, finish, make_engine


@pytest.mark.parametrize(
    ("prompt", "fields", "param", "said"),
    [
        ([], {}, "prompt", "empty"),
        ([VOCAB], {}, "prompt", str(VOCAB)),
        ([-1], {}, "prompt", "-1"),
        ([1] * 600, {}, "prompt", "600 in the prompt and 16 to generate: the prompt is too long"),
        ([1] * 10, {"max_tokens": 503}, "prompt", "maximum context length is 512 tokens"),
        ([1] * 100, {"beam_width": 8, "max_tokens": 400}, "max_tokens", "max_tokens=92 would fit"),
        (
            [1] * 100,
            {"beam_width": 8, "max_tokens": None},
            "max_tokens",
            "8 beams of up to 512 tokens need 256 cache blocks",
        ),
        ([1], {"stop_token_ids": [VOCAB]}, "stop_token_ids", str(VOCAB)),
        ([1], {"logit_bias": {VOCAB: 1.0}}, "logit_bias", str(VOCAB)),
        ([1], {"beam_width": 33}, "beam_width", "max_num_seqs=32"),
        ([1], {"allowed_token_ids": [EOS], "min_tokens": 3}, "min_tokens", "all are stop tokens"),
        ([1], {"stop_token_ids": list(range(VOCAB)), "min_tokens": 3}, "min_tokens", "all are stop tokens"),
    ],
)
def test_what_can_never_run_is_refused_when_it_is_added(prompt, fields, param, said):
    engine = make_engine(Knobs(num_blocks=100))
    with pytest.raises(InvalidRequest) as caught:
        add_request(engine, "r", prompt, SamplingParams(**fields))
    assert caught.value.param == param and said in caught.value.message
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("num_blocks", [33, 100])
def test_without_max_tokens_the_rest_of_the_context_is_filled(num_blocks):
    engine = make_engine(Knobs(num_blocks=num_blocks, overrides={"max_model_len": 500}))
    add_request(engine, "r", [1] * 488, SamplingParams(max_tokens=None, ignore_eos=True))
    choice = finish(engine)["r"].outputs[0]
    assert len(choice.token_ids) == 12 and choice.finish_reason == "length"


def test_what_is_sure_to_exceed_the_context_is_refused():
    engine = make_engine(Knobs(overrides={"max_model_len": 100}))
    with pytest.raises(InvalidRequest, match=r"90 in the prompt and at least 11 to generate$") as caught:
        add_request(engine, "r", [1] * 90, SamplingParams(max_tokens=None, min_tokens=11))
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(("max_tokens", "expected"), [(9, 9), (12, 12), (13, 12), (32_000, 12)])
def test_an_answer_may_end_with_the_context_if_more_was_asked_for(max_tokens, expected):
    engine = make_engine(Knobs(overrides={"max_model_len": 100}))
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    add_request(engine, "r", [1] * 88, params, ends_with_context=True)
    answer = finish(engine)["r"]
    assert len(answer.outputs[0].token_ids) == answer.max_tokens == expected
    assert answer.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(("num_prompt", "least", "said"), [(100, 1, "1"), (90, 11, "at least 11")])
def test_a_context_without_room_for_an_answer_is_refused(num_prompt, least, said):
    engine = make_engine(Knobs(overrides={"max_model_len": 100}))
    params = SamplingParams(max_tokens=500, min_tokens=least)
    with pytest.raises(InvalidRequest, match=f"{num_prompt} in the prompt and {said} to generate"):
        add_request(engine, "r", [1] * num_prompt, params, ends_with_context=True)
