"""With a draft model, the demo checkpoint says what it says alone and without, to the bit: in
company, in chunks, from the cache, after swaps, sharded, quantized, resumed. Kernels in bfloat16.
"""

import pytest

from engine.sampling_params import SamplingParams
from tests.engine.exactness.test_demo_exactness import KINDS, SHARDED, requests
from tests.engine.support.demo import answers, check_resumed, demo_engine, every_bit, held_out_prompts
from tests.engine.support.draft_models import truncated
from tests.engine.support.workloads import DEMO

KERNELS = {"ops_backend": "cpu", "dtype": "bfloat16"}
SMALL_CACHE = {"num_gpu_blocks_override": 26, "max_model_len": 400, "watermark": 0.0}
VARIANTS = {
    "in company": {"num_threads": 2},
    "chunks of 7, two at a time": {"long_prefill_token_threshold": 7, "max_num_seqs": 2},
    "TP=2": SHARDED["TP=2 × PP=1"],
    "TP=2 × PP=2": SHARDED["TP=2 × PP=2"],
    "without tapes": {"enforce_eager": True},
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return truncated(tmp_path_factory.mktemp("drafts") / "truncated")


@pytest.fixture(scope="module")
def alone():
    with demo_engine(**KERNELS, enable_prefix_caching=False) as engine:
        return [every_bit(answers(engine, [single])[0]) for single in requests()]


def drafting_engine(model, **overrides):
    return demo_engine(**KERNELS, **overrides, speculative_config={"model": model})


def drafts_of(engine):
    return engine.recorder.measures.copy().drafts


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_answers_are_those_given_alone(small, alone, variant):
    with drafting_engine(small, **variant) as engine:
        assert [every_bit(output) for output in answers(engine, requests())] == alone
        drafts = drafts_of(engine)
    assert 0 < drafts.num_accepted < drafts.num_tokens


@pytest.mark.parametrize("swap_space", [0.05, 0.0], ids=["swapped", "recomputed"])
def test_preempted_in_a_small_cache(small, swap_space):
    long = [
        (prompt, SamplingParams(**KINDS[n % 4], seed=n, max_tokens=80, ignore_eos=True))
        for n, prompt in enumerate(held_out_prompts(10))
    ]
    with demo_engine(**KERNELS, enable_prefix_caching=False) as engine:
        expected = [every_bit(output) for output in answers(engine, long)]
    with drafting_engine(small, **SMALL_CACHE, swap_space=swap_space) as engine:
        assert [every_bit(output) for output in answers(engine, long)] == expected
        stats, drafts = engine.stats(), drafts_of(engine)
    assert (stats.num_preemptions_swap if swap_space else stats.num_preemptions_recompute) > 0
    assert 0 < drafts.num_accepted < drafts.num_tokens


def test_quantized_weights_of_either_model_change_no_answer(small):
    single = [(prompt, SamplingParams(seed=1, max_tokens=20, logprobs=1)) for prompt in held_out_prompts(4)]
    with demo_engine(**KERNELS, quantization="int8") as engine:
        expected = [every_bit(output) for output in answers(engine, single)]
    speculation = {"model": small, "quantization": "int4", "num_speculative_tokens": 3}
    with demo_engine(**KERNELS, quantization="int8", speculative_config=speculation) as engine:
        assert [every_bit(output) for output in answers(engine, single)] == expected
        assert drafts_of(engine).num_accepted > 0


@pytest.mark.parametrize("vocab_size", [700, 832])
def test_a_vocabulary_may_be_padded_differently(tmp_path, vocab_size):
    """That of 700 lacks ids of the tokenizer, which starts refuse: no answer is wrong even so, also
    where penalties count those ids.
    """
    single = [(prompt, SamplingParams(seed=1, temperature=1.5, max_tokens=20)) for prompt in held_out_prompts(4)]
    counted = SamplingParams(seed=1, temperature=2.0, max_tokens=20, repetition_penalty=2.0, ignore_eos=True)
    single += [([*range(680, 768)], counted)]
    with demo_engine(**KERNELS) as engine:
        expected = [every_bit(output) for output in answers(engine, single)]
    with drafting_engine(truncated(tmp_path / "draft", vocab_size=vocab_size)) as engine:
        assert [every_bit(output) for output in answers(engine, single)] == expected
        assert drafts_of(engine).num_accepted > 0 or vocab_size < 768


FEATURES = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0},
    "drawn from a few": {"temperature": 1.2, "top_p": 0.9, "top_k": 50, "min_p": 0.02},
    "penalties": {"temperature": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    "biases": {"temperature": 1.0, "logit_bias": {40: 5.0}, "min_tokens": 9},
    "allowed": {"temperature": 1.0, "allowed_token_ids": [*range(30, 90)]},
    "choices": {"temperature": 1.0, "n": 2},
}


@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
def test_a_model_that_guesses_for_itself_is_always_right(options):
    """Also from the prefix index, and after tokens that were guessed: its cache has no holes."""
    with drafting_engine(DEMO) as engine:
        for prompt in held_out_prompts(2):
            for _ in range(2):
                params = SamplingParams(**options, seed=3, max_tokens=30, ignore_eos=True)
                (answer,) = answers(engine, [(prompt, params)])
                longer = prompt + answer.outputs[0].token_ids
                answers(engine, [(longer, params)])
        drafts = drafts_of(engine)
    assert drafts.num_accepted == drafts.num_tokens > 100


def test_resumed_at_every_fourth_token(small):
    with demo_engine(**KERNELS) as plain, drafting_engine(small) as engine:
        check_resumed(engine, plain, requests()[:12], every_bit, every=4)
