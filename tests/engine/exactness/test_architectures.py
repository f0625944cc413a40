"""Engines on small random models of each architecture: the tokens of transformers' `generate`; the
same bits in any company and however the model is cut.
"""

import random

import pytest
import torch

import ops
from engine.sampling_params import SamplingParams
from tests.engine.support.demo import Request, answers, demo_engine, every_bit
from tests.parallel.spec.saved import MAKERS, VOCAB, Saved, make_and_save

MAX_TOKENS = 12
KERNELS = {"ops_backend": "cpu", "dtype": "bfloat16"}
SMALL_STEPS = {"max_num_batched_tokens": 40, "max_num_seqs": 8}
SHARDED = [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2)]


@pytest.fixture(scope="module", params=MAKERS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return make_and_save(request.param, tmp_path_factory.mktemp("model"))


def prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in (1, 5, 17, 33, 64, 3)]


@pytest.fixture(scope="module")
def greedy(saved: Saved) -> list[list[int]]:
    """Their tokens for every prompt."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        whole = [
            saved.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
            )
            for prompt in prompts()
        ]
    torch.set_num_threads(threads)
    return [ids[0, len(prompt) :].tolist() for prompt, ids in zip(prompts(), whole, strict=True)]


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2)])
def test_greedy_tokens_are_those_of_transformers(saved: Saved, greedy: list[list[int]], tp: int, pp: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    with demo_engine(model=saved.folder, tensor_parallel_size=tp, pipeline_parallel_size=pp) as engine:
        got = [answer.outputs[0].token_ids for answer in answers(engine, [(prompt, params) for prompt in prompts()])]
    assert got == greedy


def test_the_same_bits_in_any_company_and_however_it_is_cut(saved: Saved) -> None:
    if (reason := ops.unavailable_reason("cpu", torch.device("cpu"))) is not None:
        pytest.skip(reason)
    kinds = [{"temperature": 0.0, "logprobs": 2}, {"temperature": 0.9, "top_k": 50, "logprobs": 1}]
    requests: list[Request] = [
        (prompt, SamplingParams(**kinds[n % 2], seed=n, max_tokens=MAX_TOKENS)) for n, prompt in enumerate(prompts())
    ]
    with demo_engine(model=saved.folder, **KERNELS, enable_prefix_caching=False) as engine:
        alone = [every_bit(answers(engine, [request])[0]) for request in requests]
    for tp, pp in SHARDED:
        with demo_engine(
            model=saved.folder, **KERNELS, tensor_parallel_size=tp, pipeline_parallel_size=pp, **SMALL_STEPS
        ) as engine:
            assert [every_bit(answer) for answer in answers(engine, requests)] == alone, f"TP={tp}, PP={pp}"
