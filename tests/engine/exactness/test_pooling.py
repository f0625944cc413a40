"""Embeddings of the demo checkpoint: those of transformers, and the same bits whatever else is
computed.
"""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

from engine.pooling import Embedding, Pooling, values
from engine.sampling_params import SamplingParams
from tests.engine.exactness.test_demo_exactness import SHARDED, VARIANTS
from tests.engine.support.arrivals import add_request
from tests.engine.support.demo import demo_engine, held_out_prompts
from tests.engine.support.workloads import DEMO

PROMPTS = held_out_prompts(24)
KINDS = (Pooling("last"), Pooling("mean"), Pooling("logprobs", (17, 301)))
NO_TOKENS = SamplingParams(temperature=0, max_tokens=1)


def pooled(engine, requests, *, beside=()):
    """The numbers of each (prompt, pooling), all at once, with answers of `beside` in the steps."""
    for number, (prompt, pooling) in enumerate(requests):
        add_request(engine, str(number), prompt, NO_TOKENS, pooling=pooling)
    for number, prompt in enumerate(beside):
        add_request(engine, f"beside {number}", prompt, SamplingParams(temperature=0, max_tokens=12))
    found = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.error is None
            for choice in output.outputs:
                if choice.pooled is not None:
                    found[output.request_id] = choice.pooled
    return [found[str(number)] for number in range(len(requests))]


CASES = VARIANTS | {name: SHARDED[name] for name in ("TP=2 × PP=1", "TP=1 × PP=2", "TP=2 × PP=2")}
REQUESTS = [(prompt, KINDS[number % 3]) for number, prompt in enumerate(PROMPTS)]


KERNELS = {"ops_backend": "cpu", "dtype": "bfloat16"}


@pytest.fixture(scope="module")
def alone():
    with demo_engine(**KERNELS, enable_prefix_caching=False) as engine:
        return [pooled(engine, [each])[0] for each in REQUESTS]


@pytest.mark.parametrize("variant", CASES.values(), ids=CASES)
def test_every_bit_is_that_computed_alone(alone, variant):
    with demo_engine(**KERNELS, **variant) as engine:
        assert pooled(engine, REQUESTS, beside=PROMPTS) == alone
        assert pooled(engine, REQUESTS) == alone  # the prefixes of all are cached now
        stats = engine.stats()
    if "num_gpu_blocks_override" in variant:
        assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0


def test_they_are_those_of_transformers():
    theirs = AutoModel.from_pretrained(DEMO, dtype=torch.float32)
    with demo_engine() as engine:
        last = pooled(engine, [(prompt, Pooling("last")) for prompt in PROMPTS])
        mean = pooled(engine, [(prompt, Pooling("mean")) for prompt in PROMPTS])
    for prompt, of_last, of_mean in zip(PROMPTS, last, mean, strict=True):
        with torch.inference_mode():
            states = theirs(torch.tensor([prompt])).last_hidden_state[0]
        for ours, expected in ((of_last, states[-1]), (of_mean, states.mean(dim=0))):
            np.testing.assert_allclose(values(ours), expected.numpy(), atol=1e-3)
            unit = torch.nn.functional.normalize(expected, dim=0).numpy()
            np.testing.assert_allclose(Embedding().vector(ours), unit, atol=1e-4)


def test_log_probabilities_are_those_of_transformers():
    theirs = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    with demo_engine() as engine:
        found = pooled(engine, [(prompt, Pooling("logprobs", (17, 301))) for prompt in PROMPTS])
    for prompt, ours in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            expected = torch.log_softmax(theirs(torch.tensor([prompt])).logits[0, -1], -1)
        np.testing.assert_allclose(values(ours), expected[[17, 301]].numpy(), atol=1e-3)


def test_a_prompt_may_fill_the_context():
    with demo_engine(max_model_len=48) as engine:
        prompt = (PROMPTS[0] * 10)[:48]
        (numbers,) = pooled(engine, [(prompt, Pooling("mean"))])
    assert np.isfinite(values(numbers)).all()
