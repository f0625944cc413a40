"""The demo checkpoint says the same alone and in company, in chunks, from the cache, after swaps,
sharded, with drafts and resumed.

In float32 on the reference backend: the same tokens. In bfloat16 on the C++ kernels: the same
logprobs too, to the bit.
"""

import random

import pytest

from engine.sampling_params import SamplingParams
from tests.engine.support.demo import answers, check_resumed, demo_engine, every_bit, held_out_prompts, tokens_and_text

NUM_REQUESTS = 24
KINDS = [
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9, "n": 2},
    {"temperature": 0.0, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    {"temperature": 0.7, "min_p": 0.05, "logprobs": 2, "stop": ["e"]},
    {"temperature": 1.0, "min_tokens": 5, "stop_token_ids": [40], "prompt_logprobs": 1},
    {"temperature": 1.5, "structured_outputs": {"json": {"enum": ["one", {"two": [3, None]}, "four"]}}, "logprobs": 1},
    {"temperature": 1.0, "structured_outputs": {"regex": "[a-z ]*[.]"}, "n": 2},
]
REFERENCE = ("reference", "float32", tokens_and_text)
KERNELS = ("cpu", "bfloat16", every_bit)
SMALL_CACHE = {"num_gpu_blocks_override": 26, "max_model_len": 400, "watermark": 0.0}
VARIANTS = {
    "in company": {"num_threads": 2},
    "chunks of 1": {"long_prefill_token_threshold": 1, "max_num_seqs": 6},
    "chunks of 7": {"long_prefill_token_threshold": 7, "enable_prefix_caching": False},
    "a small batch": {"max_num_seqs": 4, "max_num_batched_tokens": 33},
    "a small cache, swapped": SMALL_CACHE | {"swap_space": 0.05},
    "a small cache, recomputed": SMALL_CACHE | {"swap_space": 0.0},
}
SHARDED = {
    f"TP={tp} × PP={pp}": {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    for tp in (1, 2, 4)
    for pp in (1, 2, 4)
    if tp * pp > 1
}
SPECULATION = {"speculative_config": {"num_speculative_tokens": 5, "prompt_lookup_min": 1}}
SPECULATIVE = {
    "drafts in company": SPECULATION,
    "drafts, one at a time": SPECULATION | {"max_num_seqs": 2},
    "drafts in a small cache": SPECULATION | SMALL_CACHE | {"max_num_seqs": 8},
    "drafts, TP=2 × PP=2": SPECULATION | SHARDED["TP=2 × PP=2"],
}
ALL = VARIANTS | SHARDED | SPECULATIVE
BACKENDS = {"reference": REFERENCE, "kernels": KERNELS}
BETWEEN = ("TP=1 × PP=4", "TP=4 × PP=1", "TP=2 × PP=4", "TP=4 × PP=2")  # between those that are run always
ALWAYS = ("in company", "a small cache, swapped", "TP=2 × PP=2")  # on the reference backend


def requests():
    """Prompts of the held-out set with all kinds of sampling, shuffled."""
    prompts = held_out_prompts(NUM_REQUESTS)
    made = [(p, SamplingParams(**KINDS[n % len(KINDS)], seed=n, max_tokens=20)) for n, p in enumerate(prompts)]
    random.Random(0).shuffle(made)
    return made


@pytest.fixture(scope="module")
def alone(request):
    """Backend, dtype, what is compared, and each request's answer when it is the only one."""
    backend, dtype, essence = request.param
    with demo_engine(ops_backend=backend, dtype=dtype, enable_prefix_caching=False) as engine:
        yield backend, dtype, essence, [essence(answers(engine, [single])[0]) for single in requests()]


def is_long(backend, name):
    return name in BETWEEN or (backend == "reference" and name not in ALWAYS)


@pytest.mark.parametrize(
    ("alone", "variant"),
    [
        pytest.param(how, variant, id=f"{backend}-{name}", marks=[pytest.mark.long] * is_long(backend, name))
        for backend, how in BACKENDS.items()
        for name, variant in ALL.items()
    ],
    indirect=["alone"],
)
def test_the_answers_are_those_given_alone(alone, variant):
    backend, dtype, essence, expected = alone
    with demo_engine(ops_backend=backend, dtype=dtype, **variant) as engine:
        got = [essence(output) for output in answers(engine, requests())]
        stats, drafts = engine.stats(), engine.recorder.measures.copy().drafts
    assert got == expected
    assert (drafts.num_accepted > 0) == ("speculative_config" in variant)
    if "num_gpu_blocks_override" in variant:
        assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0


@pytest.mark.parametrize(
    "alone",
    [pytest.param(REFERENCE, id="reference", marks=pytest.mark.long), pytest.param(KERNELS, id="kernels")],
    indirect=True,
)
def test_resumed_at_every_fourth_token(alone):
    backend, dtype, essence, _ = alone
    with demo_engine(ops_backend=backend, dtype=dtype) as engine:
        check_resumed(engine, engine, requests()[:12], essence, every=4)
