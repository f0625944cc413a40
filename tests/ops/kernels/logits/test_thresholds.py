"""Thresholds of one row, whose other blocks nobody reads."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from ops.kernels.logits.thresholds import top_k_kernel, top_p_kernel
from tests.ops.kernels.where import DEVICE, MARKS

pytestmark = MARKS
VOCAB = 300
SIZES = {"CHUNK": 512, "NUM_CHUNKS": 1, "BLOCKS": 8, "CHAINED": False}
LIKELY = [0, 3]  # blocks of 64


def ordered(logits: Tensor) -> Tensor:
    bits = logits.view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def in_blocks(row: Tensor) -> Tensor:
    """[1, VOCAB] -> [8, 64], and zeros."""
    return torch.nn.functional.pad(row, (0, 512 - VOCAB)).view(8, 64)


def spoilt(row: Tensor) -> Tensor:
    """With large numbers in all blocks but the likely ones."""
    blocks = torch.full_like(in_blocks(row), 1e30)
    blocks[LIKELY] = in_blocks(row)[LIKELY]
    return blocks.view(1, 512)


@pytest.mark.parametrize("count", [1, 2])
def test_the_kth_largest_is_found_in_the_likeliest_blocks(count: int) -> None:
    logits = torch.randn(1, VOCAB, device=DEVICE)
    logits[0, [7, 200]] += 100.0
    want = ordered(logits).sort(descending=True).values[0, count - 1]
    largest, kept = in_blocks(logits).amax(1), torch.empty(8, dtype=torch.int32, device=DEVICE)
    got = torch.empty(1, dtype=torch.int32, device=DEVICE)
    top_k = torch.tensor([count], dtype=torch.int32, device=DEVICE)
    top_k_kernel[(1,)](spoilt(logits)[:, :VOCAB].contiguous(), top_k, largest, kept, got, VOCAB=VOCAB, **SIZES)
    assert got == want


@pytest.mark.parametrize("count", [6, 70, VOCAB - 1])
def test_with_more_than_there_are_blocks_all_are_read(count: int) -> None:
    logits = torch.randn(1, VOCAB, device=DEVICE)
    largest, kept = in_blocks(logits).amax(1), torch.empty(8, dtype=torch.int32, device=DEVICE)
    got = torch.empty(1, dtype=torch.int32, device=DEVICE)
    top_k = torch.tensor([count], dtype=torch.int32, device=DEVICE)
    top_k_kernel[(1,)](logits, top_k, largest, kept, got, VOCAB=VOCAB, **SIZES)
    assert got == ordered(logits).sort(descending=True).values[0, count - 1]


def test_the_mass_of_top_p_is_found_in_the_likeliest_blocks() -> None:
    masses = torch.full((1, VOCAB), 1e-9, device=DEVICE)
    masses[0, [7, 8, 200]] = torch.tensor([0.5, 1.0, 0.25], device=DEVICE)
    sums, kept = in_blocks(masses).sum(1), torch.empty(8, dtype=torch.int32, device=DEVICE)
    smallest, last = torch.empty(1, device=DEVICE), torch.empty(1, dtype=torch.int32, device=DEVICE)
    ones = torch.ones(1, device=DEVICE)
    for share, want in ((0.5, 1.0), (0.8, 0.5), (0.9, 0.25)):
        top_p_kernel[(1,)](spoilt(masses), sums, ones, ones * share, kept, smallest, last, **SIZES)
        assert smallest == want
