"""Requests that are kept while the engine gets other weights: what nobody was told before comes
from the new ones alone.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint.sample import weights_digest
from engine.core.llm_engine import LLMEngine
from engine.executor import Weights
from engine.outputs import Accumulator, RequestOutput
from engine.pooling import Pooling
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.demo import demo_engine, every_bit, held_out_prompts
from tests.perturbed import save_perturbed

CHUNK = 16
(PROMPT,) = [(prompt * 4)[:75] for prompt in held_out_prompts(1)]
KINDS = {
    "tokens": {"params": SamplingParams(seed=1, max_tokens=6, logprobs=1, ignore_eos=True)},
    "prompt logprobs": {"params": SamplingParams(seed=1, max_tokens=6, prompt_logprobs=1, ignore_eos=True)},
    "choices": {"params": SamplingParams(seed=1, max_tokens=6, prompt_logprobs=0, n=2, ignore_eos=True)},
    "beams": {"params": SamplingParams(temperature=0.0, max_tokens=6, prompt_logprobs=0, beam_width=2)},
    "a mean": {"params": SamplingParams(temperature=0.0, max_tokens=1), "pooling": Pooling("mean")},
}


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    folder = str(tmp_path_factory.mktemp("weights") / "new")
    save_perturbed(Path(folder))
    return Weights("new", "of all numbers", folder=folder, sample=weights_digest(folder))


@pytest.fixture
def engine() -> Iterator[LLMEngine]:
    with demo_engine(ops_backend="cpu", dtype="bfloat16", long_prefill_token_threshold=CHUNK) as made:
        yield made


def finish(engine: LLMEngine) -> RequestOutput:
    whole = Accumulator()
    while engine.has_unfinished_requests():
        for output in engine.step():
            whole.add(output)
    assert whole.last is not None
    return whole.last


def bits(output: RequestOutput) -> object:
    return every_bit(output), [choice.pooled for choice in output.outputs]


def change(engine: LLMEngine, weights: Weights) -> None:
    engine.is_frozen = True
    while not engine.is_quiet:
        assert engine.step() == [], "nothing is told before"
    engine.epochs.change_weights(weights)
    engine.is_frozen = False


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_prompt_that_was_computed_in_part_is_computed_again(
    engine: LLMEngine, new: Weights, kind: dict[str, object], num_steps: int
) -> None:
    add_request(engine, "kept", PROMPT, **kind)
    for _ in range(num_steps):
        assert engine.step() == []
    change(engine, new)
    kept = bits(finish(engine))
    add_request(engine, "alone", PROMPT, **kind)
    assert kept == bits(finish(engine))


def test_the_best_of_several_has_the_prompt_logprobs_of_the_weights_that_its_first_choice_ended_with(
    engine: LLMEngine, new: Weights
) -> None:
    """They cannot be computed again: the choice is gone."""
    ends = [*range(3, 760, 7)]
    params = SamplingParams(temperature=2.0, seed=4, max_tokens=30, best_of=2, prompt_logprobs=0, stop_token_ids=ends)
    add_request(engine, "own", PROMPT, params)
    own = finish(engine)
    add_request(engine, "kept", PROMPT, params)
    first, second = engine.requests._groups["kept"].seqs
    while not first.finished:
        assert engine.step() == []
    assert not second.finished, "or nothing is shown"
    change(engine, new)
    assert finish(engine).prompt_logprobs == own.prompt_logprobs
