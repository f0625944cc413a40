"""Sampling by graphs: which rows, and the tokens that there are without them."""

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.ragged import starts_of
from engine.sampling_columns import SamplingColumns
from engine.worker.cache.token_history import Histories
from engine.worker.graphs import graphs as of_graphs
from engine.worker.graphs.sample_graphs import SampleGraphs
from engine.worker.head.drawn_tokens import DrawnTokens
from engine.worker.head.sampler import Sampled, sample, unpacked
from ops import reference
from ops.interface import Draws
from parallel.groups.pipeline import Stage
from tests.engine.worker.recompute import Recompute
from tests.engine.worker.steps import floats, ints

CPU = torch.device("cpu")
MAX_NUM_ROWS, MAX_MODEL_LEN, HIDDEN, VOCAB = 11, 100, 8, 40
HEAD = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(5))


def logits(hidden: Tensor) -> Tensor:
    """A row's bits depend on no other row."""
    return (hidden.float()[:, None, :] * HEAD).sum(dim=2)


class Kinds:
    """The reference, which keeps what it was told of the rows."""

    def __init__(self) -> None:
        self.told: list[Draws] = []

    apply_penalties = staticmethod(reference.apply_penalties)

    def sample(self, logits: Tensor, *columns: Tensor, draws: Draws) -> Tensor:
        self.told.append(draws)
        return reference.sample(logits, *columns, draws=draws)


class Told:
    """What graphs draw, as the host has it, and the graphs; `hidden`: where they read it."""

    def __init__(self, ops: Any = reference) -> None:
        self.hidden = torch.zeros(MAX_NUM_ROWS + 2, HIDDEN, dtype=torch.bfloat16)
        self.drawn = DrawnTokens(Stage(0, 1, None))
        self.drawn.make_ring(MAX_NUM_ROWS, CPU)
        self._graphs = SampleGraphs(
            logits,
            ops,
            Recompute(),
            max_num_rows=MAX_NUM_ROWS,
            max_model_len=MAX_MODEL_LEN,
            hidden=self.hidden,
            drawn=self.drawn,
        )
        self._num_steps = 0
        self.takes = self._graphs.takes

    @property
    def num_captured(self) -> int:
        return self._graphs.num_captured

    def run(self, hidden: Tensor, columns: SamplingColumns, histories: Histories | None = None) -> SimpleNamespace:
        packed = self._graphs.run(hidden, columns, histories)
        names = [field.name for field in fields(Sampled)]
        arrays = unpacked(packed.words.numpy(), len(hidden))
        told = SimpleNamespace(
            **{name: torch.from_numpy(array.copy()) for name, array in zip(names, arrays, strict=True)}
        )
        assert torch.equal(packed.token_ids, told.token_ids)
        self.drawn.keep(self._num_steps, packed.token_ids, is_in_ring=packed.is_in_ring)
        self._num_steps += 1
        return told


def make_graphs(ops: Any = reference) -> Told:
    return Told(ops)


def drawn(num_rows: int, seed: int) -> tuple[Tensor, SamplingColumns]:
    """Rows of every kind of draw; one is NaN."""
    random = np.random.default_rng(seed)
    columns = SamplingColumns.of_plain_rows(
        num_rows,
        temperature=random.choice([0.0, 0.7, 1.3], num_rows).astype(np.float32),
        top_k=random.choice([0, 5, 20], num_rows).astype(np.int32),
        top_p=random.choice([1.0, 0.8], num_rows).astype(np.float32),
        min_p=random.choice([0.0, 0.05], num_rows).astype(np.float32),
        seed=random.integers(0, 2**64, num_rows, dtype=np.uint64),
        choice=random.integers(0, 3, num_rows).astype(np.int32),
        position=random.integers(0, 900, num_rows).astype(np.int32),
    )
    hidden = torch.from_numpy(random.standard_normal((num_rows, HIDDEN), np.float32)).bfloat16()
    hidden[num_rows // 2, 0] = torch.nan if seed % 3 == 0 else 1.0
    return hidden, columns


def test_tokens_are_those_without_graphs_and_stay_when_the_next_are_drawn() -> None:
    graphs = make_graphs()
    steps = [drawn(num_rows, seed) for seed, num_rows in enumerate([3, 11, 1, 7, 2, 8, 11, 4, 5, 1])]
    got = [graphs.run(hidden, columns) for hidden, columns in steps]
    assert graphs.num_captured == 7  # of 1, 2, 4, 8 and 11 rows, of one row another kind, of most with penalties
    is_finite = set()
    for (hidden, columns), each in zip(steps, got, strict=True):
        assert graphs.takes(columns)
        want = sample(logits(hidden), columns, reference, None)
        assert torch.equal(each.token_ids, want.token_ids)
        assert torch.equal(each.is_finite, want.is_finite)
        assert each.token_ids.dtype == torch.int32
        assert (len(each.logprobs), each.top_ids.shape) == (0, (0, 0))
        is_finite.update(each.is_finite.tolist())
    assert is_finite == {False, True}
    assert len({tuple(each.token_ids.tolist()) for each in got}) == len(got)


def penalized(columns: SamplingColumns, seed: int) -> tuple[SamplingColumns, Histories]:
    """Two rows of three have penalties, and up to 90 tokens."""
    random, num_rows = np.random.default_rng(seed), len(columns.seed)
    num_prompt = np.where(np.arange(num_rows) % 3 < 2, random.integers(1, 30, num_rows), 0).astype(np.int32)
    position = (num_prompt + random.integers(0, 60, num_rows)).astype(np.int32)
    lengths = np.where(num_prompt > 0, position, 0).astype(np.int32)
    starts = starts_of(-(-lengths // 16)) * 16
    ids = random.integers(0, VOCAB, starts[-1]).astype(np.int32)
    columns = replace(
        columns,
        position=position,
        history_num_prompt=num_prompt,
        presence_penalty=random.choice([0.0, 0.5], num_rows).astype(np.float32),
        repetition_penalty=random.choice([1.0, 1.3, 2.5], num_rows).astype(np.float32),
    )
    return columns, Histories(*map(torch.from_numpy, (ids, starts[:-1], lengths)))


def test_rows_with_penalties_have_the_tokens_they_have_without_graphs() -> None:
    """Whatever the rows of the steps before have left; plain steps and those of penalties by
    turns.
    """
    graphs = make_graphs()
    changed = 0
    for seed, num_rows in enumerate([3, 11, 1, 7, 2, 8, 11, 4, 5, 1]):
        hidden, plain = drawn(num_rows, seed)
        columns, histories = penalized(plain, seed)
        assert graphs.takes(columns)
        got = graphs.run(hidden, columns, histories)
        want = sample(logits(hidden), columns, reference, None, histories)
        assert torch.equal(got.token_ids, want.token_ids)
        assert torch.equal(got.is_finite, want.is_finite)
        of_plain = graphs.run(hidden, replace(plain, position=columns.position))
        changed += int((of_plain.token_ids != got.token_ids).sum())
        assert torch.equal(
            of_plain.token_ids,
            sample(logits(hidden), replace(plain, position=columns.position), reference, None).token_ids,
        )
    assert changed > 5


def test_logprobs_of_the_tokens_are_those_without_graphs() -> None:
    graphs = make_graphs()
    for seed, num_rows in enumerate([3, 11, 1, 7]):
        hidden, plain = drawn(num_rows, seed)
        columns = replace(plain, logprob_counts=(np.arange(num_rows) % 3 < 2).astype(np.int32))
        assert graphs.takes(columns)
        got, wanting = graphs.run(hidden, columns), np.flatnonzero(columns.logprob_counts)
        want = sample(logits(hidden), columns, reference, 0)
        assert torch.equal(got.token_ids, want.token_ids)
        assert torch.equal(got.is_finite, want.is_finite)
        assert torch.equal(got.ranks[wanting], want.ranks[wanting])
        assert torch.equal(got.logprobs[wanting].view(torch.int32), want.logprobs[wanting].view(torch.int32))
        assert (got.top_ids.shape, got.top_logprobs.shape) == (want.top_ids.shape, want.top_logprobs.shape)
        assert (got.logprobs[wanting] < 0).any()
    assert graphs.num_captured == 5, "of 1, 4, 8 and 11 rows, and of most with penalties"


def test_histories_that_have_no_room_are_sampled_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_graphs, "MAX_HISTORY", 64)
    graphs = make_graphs()
    columns = replace(drawn(3, 1)[1], position=ints(16, 999, 33), history_num_prompt=ints(9, 0, 9))
    assert graphs.takes(columns), "16 tokens and 48"
    assert not graphs.takes(replace(columns, position=ints(17, 999, 33)))
    assert graphs.takes(replace(columns, position=ints(17, 999, 33), history_num_prompt=ints()))


def test_what_no_row_asks_for_is_left_out() -> None:
    ops = Kinds()
    graphs = make_graphs(ops)
    hidden, columns = drawn(3, 1)
    plain = SamplingColumns.of_plain_rows(3, seed=columns.seed, position=columns.position)
    warm = np.array([0.0, 0.7, 0.0], np.float32)
    steps: list[tuple[SamplingColumns, Draws]] = [
        (plain, "greedy"),
        (replace(plain, top_k=ints(0, 5, 0), top_p=floats(0.5, 1, 1)), "greedy"),
        (replace(plain, temperature=warm), "unfiltered"),
        (replace(plain, temperature=warm, top_k=ints(0, 5, 0)), "any"),
        (replace(plain, temperature=warm, top_p=floats(1, 0.5, 1)), "any"),
        (replace(plain, temperature=warm, min_p=floats(0, 0.1, 0)), "any"),
    ]
    for asked, draws in steps:
        got = graphs.run(hidden, asked)
        assert ops.told[-1] == draws
        assert torch.equal(got.token_ids, sample(logits(hidden), asked, reference, None).token_ids)
    assert graphs.num_captured == 4, "of four rows each kind of draw, and the largest with penalties"


@pytest.mark.parametrize(
    "changes",
    [
        {"logprob_counts": ints(0, 2)},
        {"has_target": np.array([True, False])},
        {"bias_starts": ints(0, 1, 1), "bias_ids": ints(3), "bias_values": floats(-1)},
        {"ban_starts": ints(0, 1, 1), "ban_last_ids": ints(2), "ban_ids": ints(3)},
        {"allowed_starts": ints(0, 0, 1), "allowed_ids": ints(3)},
        {"history_num_prompt": ints(1, 0), "logprob_counts": ints(0, 1)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_rows_that_ask_for_more_are_sampled_as_before(changes: dict[str, np.ndarray]) -> None:
    _, columns = drawn(2, 1)
    assert make_graphs().takes(columns)
    assert not make_graphs().takes(replace(columns, **changes))


def test_as_many_rows_as_there_are_graphs_for() -> None:
    assert make_graphs().takes(drawn(MAX_NUM_ROWS, 0)[1])
    assert not make_graphs().takes(drawn(MAX_NUM_ROWS + 1, 0)[1])
    assert not make_graphs().takes(SamplingColumns.of_plain_rows(0))
