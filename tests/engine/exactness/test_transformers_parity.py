"""The demo checkpoint in float32 answers as transformers' `generate` does: greedy, beams, logprobs,
repetition penalty.
"""

import itertools

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.sampling_params import SamplingParams
from tests.engine.support.demo import answers, demo_engine, held_out_prompts
from tests.engine.support.workloads import DEMO

MAX_TOKENS = 24
PROMPTS = held_out_prompts(100)


@pytest.fixture(scope="module")
def theirs():
    return AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)


@pytest.fixture(scope="module")
def ours():
    with demo_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def greedy(theirs):
    """Their tokens and logits for every prompt."""
    options = {"max_new_tokens": MAX_TOKENS, "output_logits": True, "return_dict_in_generate": True, "num_beams": 1}
    return [generate(theirs, prompt, **options) for prompt in PROMPTS]


def generate(model, prompt, **options):
    with torch.inference_mode():
        return model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            **options,
        )


def test_greedy_with_logprobs(ours, greedy):
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, logprobs=3)
    got = answers(ours, [(prompt, params) for prompt in PROMPTS])
    for prompt, answer, expected in zip(PROMPTS, got, greedy, strict=True):
        choice = answer.outputs[0]
        assert choice.token_ids == expected.sequences[0, len(prompt) :].tolist()
        for position, logits in zip(choice.logprobs, expected.logits, strict=True):
            logprobs = torch.log_softmax(logits[0], -1)
            assert {token_id for token_id, found in position.items() if found.rank <= 3} == set(
                torch.topk(logprobs, 3).indices.tolist()
            )
            for token_id, found in position.items():
                assert found.logprob == pytest.approx(float(logprobs[token_id]), abs=1e-3)


BETWEEN = [(1, 4), (4, 1), (2, 4), (4, 2)]  # between those that are run always


@pytest.mark.parametrize(
    ("tp", "pp"),
    [
        pytest.param(tp, pp, marks=[pytest.mark.long] * ((tp, pp) in BETWEEN))
        for tp, pp in itertools.product((1, 2, 4), repeat=2)
    ],
)
def test_greedy_sharded(greedy, tp, pp):
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    with demo_engine(tensor_parallel_size=tp, pipeline_parallel_size=pp) as engine:
        got = [answer.outputs[0].token_ids for answer in answers(engine, [(prompt, params) for prompt in PROMPTS])]
    assert got == [expected.sequences[0, len(p) :].tolist() for p, expected in zip(PROMPTS, greedy, strict=True)]


def test_repetition_penalty(theirs, ours):
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, repetition_penalty=1.3)
    for prompt, answer in zip(PROMPTS[:20], answers(ours, [(p, params) for p in PROMPTS[:20]]), strict=True):
        expected = generate(theirs, prompt, max_new_tokens=MAX_TOKENS, repetition_penalty=1.3, num_beams=1)
        assert answer.outputs[0].token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_beams(theirs, ours, width, length_penalty, early_stopping):
    prompts = PROMPTS[::17]
    params = SamplingParams(
        temperature=0.0,
        max_tokens=MAX_TOKENS,
        beam_width=width,
        n=width,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    for prompt, answer in zip(prompts, answers(ours, [(p, params) for p in prompts]), strict=True):
        expected = generate(
            theirs,
            prompt,
            max_new_tokens=MAX_TOKENS,
            num_beams=width,
            num_return_sequences=width,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        pad = theirs.generation_config.pad_token_id
        lines = [[i for i in row if i != pad] for row in expected[:, len(prompt) :].tolist()]
        assert [choice.token_ids for choice in answer.outputs] == lines
