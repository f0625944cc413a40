"""The order of the sampling steps, and rows that cannot be sampled."""

import inspect
from itertools import pairwise

import numpy as np
import torch

from engine.sampling_columns import SamplingColumns
from engine.worker.cache.token_history import Histories
from engine.worker.head.sampler import STEPS, Sampled, num_top_logprobs, sample, take_rows
from ops import reference
from tests.engine.worker.steps import floats, ints

INF = float("inf")


def run(logits: list[list[float]], histories: list[list[int]] | None = None, **columns: np.ndarray) -> Sampled:
    made = SamplingColumns.of_plain_rows(len(logits), **columns)
    so_far = None if histories is None else histories_of(histories)
    return sample(torch.tensor(logits), made, reference, num_top_logprobs(made), so_far)


def histories_of(rows: list[list[int]]) -> Histories:
    starts = np.cumsum([0, *map(len, rows)])[:-1]
    lists = ([token for row in rows for token in row], starts, [len(row) for row in rows])
    return Histories(*(torch.tensor(each, dtype=torch.int32) for each in lists))


def test_greedy_takes_the_largest_and_gives_no_logprobs() -> None:
    sampled = run([[0.0, 3.0, 1.0], [2.0, 2.0, 1.0]])
    assert sampled.token_ids.tolist() == [1, 0]
    assert sampled.token_ids.dtype == torch.int32
    assert sampled.is_finite.tolist() == [True, True]
    assert sampled.logprobs.shape == (0,)
    assert sampled.top_ids.shape == (0, 0)


def test_bias_comes_before_the_repetition_penalty() -> None:
    """Token 0 is biased from 1 to 3, then halved to 1.5, below token 1's 2; the other way round it
    would win.
    """
    sampled = run(
        [[1.0, 2.0]],
        bias_starts=ints(0, 1),
        bias_ids=ints(0),
        bias_values=floats(2.0),
        repetition_penalty=floats(2.0),
        history_num_prompt=ints(1),
        histories=[[0]],
    )
    assert sampled.token_ids.tolist() == [1]


def test_bias_cannot_bring_back_what_is_not_allowed() -> None:
    sampled = run(
        [[1.0, 2.0, 0.0]],
        allowed_starts=ints(0, 1),
        allowed_ids=ints(2),
        bias_starts=ints(0, 1),
        bias_ids=ints(1),
        bias_values=floats(100.0),
    )
    assert sampled.token_ids.tolist() == [2]


def test_a_mask_of_allowed_tokens_is_beside_a_grammars() -> None:
    masks = {"mask_starts": ints(0, 1, 1), "mask_words": ints(0b011), "allowed_mask_starts": ints(0, 1, 2)}
    sampled = run([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], **masks, allowed_mask_words=ints(0b101, 0b011))
    assert sampled.token_ids.tolist() == [0, 1]


def test_a_row_asks_for_itself_only() -> None:
    sampled = run(
        [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]],
        bias_starts=ints(0, 0, 1, 1),
        bias_ids=ints(1),
        bias_values=floats(-INF),
    )
    assert sampled.token_ids.tolist() == [1, 0, 1]


def test_logprobs_are_of_the_logits_as_they_came() -> None:
    raw = [1.0, 2.0, 0.5]
    sampled = run(
        [raw, raw],
        logprob_counts=ints(0, 3),
        bias_starts=ints(0, 1, 2),
        bias_ids=ints(1, 1),
        bias_values=floats(-INF, -INF),
    )
    expected = torch.tensor(raw).log_softmax(0)
    assert sampled.token_ids.tolist() == [0, 0]
    torch.testing.assert_close(sampled.logprobs, torch.stack((torch.tensor(0.0), expected[0])))
    assert sampled.ranks.tolist() == [0, 2]
    assert sampled.top_ids[1].tolist() == [1, 0]
    torch.testing.assert_close(sampled.top_logprobs[1], expected[[1, 0]])


def test_rows_that_hold_nan_or_have_everything_banned() -> None:
    sampled = run(
        [[1.0, 2.0], [float("nan"), 2.0], [1.0, 2.0], [INF, 2.0], [-INF, 2.0]],
        bias_starts=ints(0, 0, 0, 2, 2, 2),
        bias_ids=ints(0, 1),
        bias_values=floats(-INF, -INF),
        temperature=floats(0, 1, 1, 1, 1),
    )
    assert sampled.is_finite.tolist() == [True, False, False, False, True]
    assert sampled.token_ids.tolist() == [1, 0, 0, 0, 1]


def test_a_target_is_given_not_sampled() -> None:
    sampled = run(
        [[1.0, 2.0], [1.0, 2.0]],
        has_target=np.array([True, False]),
        target_ids=ints(0, 0),
        logprob_counts=ints(1, 1),
    )
    assert sampled.token_ids.tolist() == [0, 1]
    torch.testing.assert_close(sampled.logprobs, torch.tensor([1.0, 2.0]).log_softmax(0))
    assert sampled.ranks.tolist() == [2, 1]
    assert sampled.top_ids.shape == (2, 0)


def test_only_targets() -> None:
    sampled = run([[1.0, 2.0]], has_target=np.array([True]), target_ids=ints(0), logprob_counts=ints(2))
    assert (sampled.token_ids.tolist(), sampled.top_ids.tolist()) == ([0], [[1]])


def test_any_cut_of_the_rows_samples_the_same() -> None:
    """Ten rows, each with another mix of wishes, at once and in pieces."""
    random = np.random.default_rng(1)
    logits = torch.from_numpy(random.normal(size=(10, 50)).astype(np.float32))
    lengths = random.integers(0, 4, size=(2, 10))
    starts = np.concatenate((np.zeros((2, 1)), lengths.cumsum(axis=1)), axis=1).astype(np.int32)
    bias, allowed = (random.integers(0, 50, size=row[-1]).astype(np.int32) for row in starts)
    histories = [random.integers(0, 50, size=length).tolist() for length in random.integers(0, 4, 10)]
    last_ids = torch.arange(10, dtype=torch.int32)
    columns = SamplingColumns.of_plain_rows(
        10,
        temperature=random.uniform(0, 2, 10).astype(np.float32),
        top_p=random.uniform(0.5, 1, 10).astype(np.float32),
        seed=random.integers(0, 1 << 63, 10).astype(np.uint64) * np.uint64(2),
        presence_penalty=random.uniform(-1, 1, 10).astype(np.float32),
        logprob_counts=random.integers(0, 4, 10).astype(np.int32),
        history_num_prompt=ints(*(min(len(history), 1) for history in histories)),
        bias_starts=starts[0],
        bias_ids=bias,
        bias_values=random.normal(size=len(bias)).astype(np.float32),
        allowed_starts=starts[1],
        allowed_ids=allowed,
        ban_starts=ints(0, 60, *[60] * 8, 120),
        ban_last_ids=np.repeat(ints(0, 8, 9), (50, 10, 60)),
        ban_ids=np.arange(120, dtype=np.int32) % 40,
        allowed_mask_starts=ints(0, 0, 0, 2, 2, 4, *[4] * 5),
        allowed_mask_words=random.integers(-(1 << 31), 1 << 31, size=4).astype(np.int32),
    )
    num_top = num_top_logprobs(columns)
    whole = sample(logits.clone(), columns, reference, num_top, histories_of(histories), last_ids)
    assert whole.token_ids[0] >= 40
    for cuts in ([0, 1, 10], [0, 4, 5, 9, 10], list(range(11))):
        parts = [
            sample(
                *(logits[start:stop].clone(), take_rows(columns, start, stop), reference, num_top),
                histories_of(histories[start:stop]),
                last_ids[start:stop],
            )
            for start, stop in pairwise(cuts)
        ]
        for name in ("token_ids", "is_finite", "logprobs", "ranks", "top_ids", "top_logprobs"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name)), name


def test_one_penalty_is_enough() -> None:
    """The columns of those that no row uses are empty."""
    for penalty, token in ((0.5, 1), (1.5, 0)):
        columns = {"history_num_prompt": ints(0), "presence_penalty": floats(penalty)}
        assert run([[1.0, 2.0]], [[1]], **columns).token_ids.tolist() == [token]


def test_every_step_is_an_op_or_a_function_of_its_columns() -> None:
    for step in STEPS:
        apply = getattr(reference, step.apply) if isinstance(step.apply, str) else step.apply
        num_taken = {"": 0, "histories": len(Histories._fields), "last_ids": 1}[step.takes]
        assert len(inspect.signature(apply).parameters) == 1 + num_taken + len(step.columns)
        assert set(step.columns) <= SamplingColumns.__dataclass_fields__.keys()
