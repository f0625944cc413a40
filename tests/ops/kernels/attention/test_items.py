"""How programs find the sequence, and the part of it, that is theirs."""

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from ops.kernels.attention.items import find, query_lens
from tests.ops.kernels.where import DEVICE, MARKS

pytestmark = MARKS
SEQUENCES = 8


@triton.jit
def lens_kernel(query_starts, output, num_sequences, SEQUENCES: tl.constexpr):
    tl.store(output + tl.arange(0, SEQUENCES), query_lens(query_starts, num_sequences, SEQUENCES))


@triton.jit
def find_kernel(ends, output, SEQUENCES: tl.constexpr):
    """Grid (items,)."""
    sequence, part = find(tl.load(ends + tl.arange(0, SEQUENCES)), tl.program_id(0))
    tl.store(output + 2 * tl.program_id(0), sequence)
    tl.store(output + 2 * tl.program_id(0) + 1, part)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def test_sequences_beyond_the_last_have_no_rows() -> None:
    output = ints(*[-1] * SEQUENCES)
    lens_kernel[(1,)](ints(0, 1, 6, 8), output, 3, SEQUENCES=SEQUENCES)
    assert output.tolist() == [1, 5, 2, 0, 0, 0, 0, 0]


def test_each_item_is_one_part_of_one_sequence() -> None:
    counts = [2, 0, 0, 3, 1, 0, 0, 0]  # some sequences have no item
    ends = ints(*torch.tensor(counts).cumsum(0).tolist())
    output = torch.empty(sum(counts), 2, dtype=torch.int32, device=DEVICE)
    find_kernel[(sum(counts),)](ends, output, SEQUENCES=SEQUENCES)
    assert output.tolist() == [[0, 0], [0, 1], [3, 0], [3, 1], [3, 2], [4, 0]]
