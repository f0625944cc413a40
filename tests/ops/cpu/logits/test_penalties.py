"""Penalties of the C++ kernel: the reference's bits, and no memory that is not theirs."""

import pytest
import torch

from ops import cpu, reference
from tests.ops.logits.test_penalties import VOCAB, histories_of

CPU = torch.device("cpu")


def test_the_bits_are_the_references() -> None:
    rows = [torch.randint(VOCAB, (length,)).tolist() for length in (0, 1, 17, 300)]
    prompts = torch.tensor([0, 1, 5, 100], dtype=torch.int32)
    floats = [torch.randn(4), torch.randn(4), torch.rand(4) + 0.5]
    logits = torch.randn(4, VOCAB)
    expected = logits.clone()
    cpu.apply_penalties(logits, *histories_of(rows, CPU), prompts, *floats)
    reference.apply_penalties(expected, *histories_of(rows, CPU), prompts, *floats)
    assert torch.equal(logits, expected)


def test_ids_that_are_no_tokens_change_nothing() -> None:
    logits, ones = torch.ones(1, VOCAB), torch.ones(1)
    ids, starts, lengths = histories_of([[-1, VOCAB, 2**31 - 1, -(2**31), 3]], CPU)
    cpu.apply_penalties(logits, ids, starts, lengths, lengths, ones, ones, 2 * ones)
    assert logits.sum() == VOCAB - 0.5
    assert logits[0, 3] == 0.5


def test_rows_that_end_after_the_tokens_are_refused() -> None:
    logits, ones = torch.ones(1, VOCAB), torch.ones(1)
    ids, starts, lengths = histories_of([[1, 2, 3]], CPU)
    with pytest.raises(ValueError, match="rows end after their 3 tokens"):
        cpu.apply_penalties(logits, ids, starts, lengths + 1, lengths, ones, ones, ones)


def test_more_rows_than_threads_count_pieces() -> None:
    """Of which each is one."""
    num_rows = (1 << 22) + 3
    logits, ones, each = torch.randn(num_rows, 1), torch.ones(num_rows), torch.arange(num_rows, dtype=torch.int32)
    expected = torch.where(logits > 0, logits / 2, logits * 2) - 2
    ids, none = torch.zeros(num_rows, dtype=torch.int32), torch.zeros(num_rows, dtype=torch.int32)
    cpu.apply_penalties(logits, ids, each, none + 1, none, ones, ones, 2 * ones)
    assert torch.equal(logits, expected)
