"""Drafts from the text, on the demo checkpoint: what repeats comes several tokens a step, and
answers are those of an engine that computes one, to the bit, cut off and resumed anywhere.
"""

import pytest

from engine.request import ChatPrompt
from engine.sampling_params import SamplingParams
from tests.engine.exactness.test_demo_exactness import KINDS, SPECULATION
from tests.engine.support.demo import answers, check_resumed, demo_engine, every_bit
from tests.engine.support.workloads import TOKENIZER

KERNELS = {"ops_backend": "cpu", "dtype": "bfloat16"}
COUNTED = ", ".join(map(str, range(1, 31)))
ASKED = "Count from 1 to 30."
VARIANTS = {
    "chunks of 1": {"long_prefill_token_threshold": 1},
    "chunks of 7": {"long_prefill_token_threshold": 7, "max_num_seqs": 3},
    "chunks of 7, PP=2": {"long_prefill_token_threshold": 7, "pipeline_parallel_size": 2},
    "whole": {},
}


def requests(max_tokens):
    """All kinds of sampling, cold enough to say the same again."""
    kinds = [kind | {"temperature": 0.3 * kind["temperature"], "ignore_eos": True} for kind in KINDS]
    return [(prompt(), SamplingParams(**kind, seed=n, max_tokens=max_tokens)) for n, kind in enumerate(kinds)]


def prompt():
    """For what the conversation has had."""
    turns = [("user", ASKED), ("assistant", COUNTED), ("user", ASKED)]
    return TOKENIZER.encode_chat(ChatPrompt([{"role": role, "content": text} for role, text in turns]))


@pytest.fixture(scope="module")
def plain():
    with demo_engine(**KERNELS, enable_prefix_caching=False) as engine:
        yield engine


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_answers_are_those_without(plain, variant):
    expected = [every_bit(answers(plain, [single])[0]) for single in requests(40)]
    with demo_engine(**KERNELS, **SPECULATION, **variant) as engine:
        assert [every_bit(output) for output in answers(engine, requests(40))] == expected
        drafts = engine.recorder.measures.copy().drafts
    assert 50 < drafts.num_accepted < drafts.num_tokens


def test_resumed_after_every_token(plain):
    """Also of two choices, each where it is."""
    with demo_engine(**KERNELS, **SPECULATION) as engine:
        check_resumed(engine, plain, requests(24), every_bit, every=1)
        assert engine.recorder.measures.copy().drafts.num_accepted > 100


@pytest.mark.parametrize("num_stages", [1, 2])
def test_what_repeats_comes_two_tokens_a_step_or_more(num_stages):
    params = SamplingParams(temperature=0.0, max_tokens=200)
    speculation = {"speculative_config": {"method": "ngram"}}
    with demo_engine(**KERNELS, **speculation, pipeline_parallel_size=num_stages) as engine:
        (answer,) = answers(engine, [(prompt(), params)])
        num_steps = sum(record.num_samples > 0 for record in engine.recorder.timeline.records)
    (told,) = answer.outputs
    assert (told.text, told.finish_reason) == (COUNTED, "stop")
    assert len(told.token_ids) >= 2 * num_steps, f"{len(told.token_ids)} tokens in {num_steps} steps"
