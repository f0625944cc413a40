"""The demo checkpoint's structured outputs are those given alone and without drafts, to the bit:
what a grammar allows after a draft is known before the draft is.
"""

import json

import pytest

from engine.sampling_params import SamplingParams
from tests.engine.exactness.test_demo_exactness import SHARDED
from tests.engine.support.demo import answers, check_resumed, demo_engine, every_bit
from tests.engine.support.workloads import TOKENIZER

KERNELS = {"ops_backend": "cpu", "dtype": "bfloat16"}
WORDS = ["lemon", "harbour", "tiger", "window"]
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"word": {"enum": WORDS}, "place": {"type": "integer", "minimum": 0, "maximum": 40}},
        "required": ["word", "place"],
        "additionalProperties": False,
    },
    "minItems": 6,
    "maxItems": 9,
}
TEXT = json.dumps([{"word": word, "place": place} for place, word in enumerate(WORDS)])
KINDS = [
    {"temperature": 0.0, "structured_outputs": {"json": SCHEMA}, "logprobs": 2},
    {"temperature": 0.8, "structured_outputs": {"json": SCHEMA}, "n": 2},
    {"temperature": 1.5, "structured_outputs": {"json": SCHEMA}, "frequency_penalty": 0.2, "logprobs": 1},
    {"temperature": 0.7, "structured_outputs": {"regex": "((lemon|harbour|tiger)[ ,]){12}"}, "min_tokens": 9},
    {"temperature": 1.0, "structured_outputs": {"json_object": True}, "ignore_eos": True, "stop": ["tig"]},
    {"temperature": 0.7, "structured_outputs": {"regex": "(lemon |window ){3,}"}, "logit_bias": {767: 3.0}},
]
DRAFTS = {"speculative_config": {"num_speculative_tokens": 6, "prompt_lookup_min": 1}}
VARIANTS = {
    "in company": {},
    "one at a time, chunks of 7": {"max_num_seqs": 2, "long_prefill_token_threshold": 7},
    "a small cache, swapped": {"num_gpu_blocks_override": 40, "max_model_len": 500, "swap_space": 0.05},
    "a small cache, recomputed": {"num_gpu_blocks_override": 40, "max_model_len": 500, "swap_space": 0.0},
    "TP=2 × PP=2": SHARDED["TP=2 × PP=2"],
}


def requests():
    prompt = TOKENIZER.encode(f"{TEXT} lemon harbour, lemon harbour, {TEXT}")
    return [(prompt[n:], SamplingParams(**KINDS[n % len(KINDS)], seed=n, max_tokens=70)) for n in range(12)]


@pytest.fixture(scope="module")
def alone():
    with demo_engine(**KERNELS, enable_prefix_caching=False) as engine:
        return [every_bit(answers(engine, [single])[0]) for single in requests()]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_answers_are_those_given_alone(alone, variant):
    with demo_engine(**KERNELS, **DRAFTS, **variant) as engine:
        assert [every_bit(output) for output in answers(engine, requests())] == alone
        stats, drafts = engine.stats(), engine.recorder.measures.copy().drafts
    assert drafts.num_accepted > 100
    if "swap_space" in variant:
        assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0


def test_resumed_at_every_fourth_token(alone):
    with demo_engine(**KERNELS) as plain, demo_engine(**KERNELS, **DRAFTS) as engine:
        check_resumed(engine, plain, requests()[:6], every_bit, every=4)


def test_each_kind_of_request_has_right_drafts():
    with demo_engine(**KERNELS, **DRAFTS) as engine:
        for prompt, params in requests()[: len(KINDS)]:
            before = engine.recorder.measures.copy().drafts.num_accepted
            answers(engine, [(prompt, params)])
            assert engine.recorder.measures.copy().drafts.num_accepted > before, params.structured_outputs
