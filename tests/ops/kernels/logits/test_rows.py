"""What kernels that go over rows of logits have in common."""

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from ops.kernels.logits.rows import MAX_CHUNK, block_sums, chunk_size, largest_kernel, ordered
from tests.ops.kernels.where import DEVICE, MARKS

pytestmark = MARKS


@triton.jit
def ordered_kernel(logits, out, SIZE: tl.constexpr):
    cells = tl.arange(0, SIZE)
    tl.store(out + cells, ordered(tl.load(logits + cells)))


@triton.jit
def sums_kernel(masses, out, CHUNK: tl.constexpr):
    tl.store(out + tl.arange(0, CHUNK // 64), block_sums(tl.load(masses + tl.arange(0, CHUNK)), CHUNK))


def test_floats_are_in_the_order_of_integers() -> None:
    values = torch.tensor([-torch.inf, -3e38, -1.5, -1e-40, -0.0, 0.0, 1e-40, 2.0], device=DEVICE)
    out = torch.empty(8, dtype=torch.int32, device=DEVICE)
    ordered_kernel[(1,)](values, out, SIZE=8)
    numbers = out.tolist()
    assert numbers == sorted(numbers)
    assert numbers[4] == numbers[5]  # the two zeros
    assert len(set(numbers)) == 7


def test_a_block_is_added_in_halves() -> None:
    masses = torch.rand(256, device=DEVICE)
    out = torch.empty(4, device=DEVICE)
    sums_kernel[(1,)](masses, out, CHUNK=256)
    want = masses.view(4, 64)
    while want.shape[1] > 1:
        half = want.shape[1] // 2
        want = want[:, :half] + want[:, half:]
    assert torch.equal(out, want[:, 0])


def test_the_largest_of_each_chunk_is_the_first_that_is_as_large() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 2.0, -1.0, -torch.inf], [0.0, -2.0, 7.0, 7.0, 3.0, 3.0]], device=DEVICE)
    largest, ids = torch.empty(2, 2, device=DEVICE), torch.empty(2, 2, dtype=torch.int32, device=DEVICE)
    largest_kernel[(2, 2)](logits, largest, ids, None, VOCAB=6, CHUNK=4, CHAINED=False)
    assert ids.tolist() == [[1, 4], [2, 4]]
    assert largest.tolist() == [[5.0, -1.0], [7.0, 3.0]]


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")  # numpy's, for the interpreter's maximum
def test_a_chunk_with_a_nan_says_so() -> None:
    logits = torch.tensor([[1.0, torch.nan, 5.0, 2.0, -1.0, -torch.inf], [torch.nan] * 4 + [3.0] * 2], device=DEVICE)
    largest, ids = torch.empty(2, 2, device=DEVICE), torch.empty(2, 2, dtype=torch.int32, device=DEVICE)
    largest_kernel[(2, 2)](logits, largest, ids, None, VOCAB=6, CHUNK=4, CHAINED=False)
    assert ids.tolist() == [[-1, 4], [-1, 4]]
    assert largest.tolist() == [[torch.inf, -1.0], [torch.inf, 3.0]]


def test_a_chunk_is_a_power_of_two_and_a_block_at_least() -> None:
    assert [chunk_size(size) for size in (1, 64, 65, 4096, 150_000)] == [64, 64, 128, 4096, MAX_CHUNK]


def test_the_largest_of_each_block() -> None:
    logits = torch.randn(2, 200, device=DEVICE) - 3.0
    largest, ids = torch.empty(2, 2, device=DEVICE), torch.empty(2, 2, dtype=torch.int32, device=DEVICE)
    of_blocks = torch.empty(2, 4, device=DEVICE)
    largest_kernel[(2, 2)](logits, largest, ids, of_blocks, VOCAB=200, CHUNK=128, CHAINED=False)
    padded = torch.nn.functional.pad(logits, (0, 56), value=-torch.inf)
    assert torch.equal(of_blocks, padded.view(2, 4, 64).amax(2))
