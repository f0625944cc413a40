"""What is left to sample, of token ids and of a grammar's mask, and bad words."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.scheduling.bans import nothing_left
from tests.engine.support.arrivals import add_request
from tests.engine.support.demo import answers, demo_engine, held_out_prompts, tokens_and_text
from tests.engine.support.workloads import TOKENIZER, Knobs, finish, make_engine

VOCAB = 64


def mask_of(*token_ids: int) -> np.ndarray:
    bits = np.zeros(VOCAB, bool)
    bits[list(token_ids)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


@pytest.mark.parametrize(
    ("allowed", "banned", "mask", "is_nothing"),
    [
        (None, {1, 2}, None, False),  # a vocabulary is larger than what can be banned
        ([1, 2], {1}, None, False),
        ([1, 2], {1, 2, 3}, None, True),
        (None, set(), mask_of(), True),
        (None, {5}, mask_of(5), True),
        (None, {5}, mask_of(5, 37), False),
        (None, {31, 63}, mask_of(31, 63), True),  # the words' highest bits, which are signs
        ([31], set(), mask_of(31), False),
        ([30, 32], set(), mask_of(31), True),
        ([31, 63], {31}, mask_of(31), True),
        (None, {VOCAB + 7}, mask_of(3), False),  # a token that the model does not have
    ],
)
def test_nothing_is_left(allowed: list[int] | None, banned: set[int], mask: np.ndarray | None, is_nothing: bool):
    assert nothing_left(allowed, banned, mask) is is_nothing


def test_a_mask_is_not_changed() -> None:
    mask = mask_of(5, 31)
    nothing_left(None, {5, 31}, mask)
    assert np.array_equal(mask, mask_of(5, 31))


FIRST, SECOND = range(20, 24), range(24, 37)  # of the pairs of tokens that are bad words


def test_bad_words_are_left_out_by_steps_that_run_ahead() -> None:
    """The last token of one is banned after the others, whoever knows of them first."""
    words = tuple(TOKENIZER.decode([first, second]) for first in FIRST for second in SECOND)
    assert all(len(TOKENIZER.encode_word(word)) == 2 for word in words)
    free = outputs_of(Knobs(), ())
    assert any(first in FIRST and second in SECOND for ids in free for first, second in pairwise(ids))
    expected = outputs_of(Knobs(), words)
    assert not any(first in FIRST and second in SECOND for ids in expected for first, second in pairwise(ids))
    for depth in (2, 3):
        assert outputs_of(Knobs(depth=depth, runs_ahead=True), words) == expected


def outputs_of(knobs: Knobs, bad_words: tuple[str, ...]) -> list[list[int]]:
    engine = make_engine(knobs)
    for seed in range(8):
        params = SamplingParams(max_tokens=100, ignore_eos=True, seed=seed, bad_words=bad_words)
        add_request(engine, str(seed), [7] * 20, params)
    ended = finish(engine)
    return [ended[str(seed)].outputs[0].token_ids for seed in range(8)]


@pytest.mark.parametrize(
    "arguments", [{}, {"ops_backend": "cpu", "dtype": "bfloat16"}, {"tensor_parallel_size": 2}], ids=str
)
def test_real_workers_compare_the_token_before(arguments: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are pairs of tokens of what the model says without."""
    prompts = held_out_prompts(4)
    free = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    with demo_engine(**arguments) as engine:
        pairs = {
            pair for output in answers(engine, [(prompt, free) for prompt in prompts]) for pair in pairs_of(output)
        }
        pairs = {pair for pair in pairs if TOKENIZER.encode_word(TOKENIZER.decode(list(pair))) == list(pair)}
        assert len(pairs) > 9
        words = tuple(TOKENIZER.decode(list(pair)) for pair in sorted(pairs))
        requests = [(prompt, replace(free, bad_words=words)) for prompt in prompts]
        ahead = answers(engine, requests)
        assert not any(pairs & set(pairs_of(output)) for output in ahead)
        monkeypatch.setattr(engine.scheduler.budget, "max_pending", 0)
        behind = answers(engine, requests)
    assert [tokens_and_text(output) for output in ahead] == [tokens_and_text(output) for output in behind]


def pairs_of(output: RequestOutput) -> list[tuple[int, int]]:
    return list(pairwise(output.outputs[0].token_ids))
