"""Codes of 4 and 8 bits in the order in which a product's threads have them."""

import pytest

pytest.importorskip("triton")
import torch

from ops.kernels.matmul.packing import pack, pack_scales, unpack

BITS = pytest.mark.parametrize("bits", [4, 8])


@BITS
@pytest.mark.parametrize("piece", [32, 64, 128])
def test_codes_are_found_again(bits: int, piece: int) -> None:
    codes = torch.randint(0, 1 << bits, (24, 3 * piece), dtype=torch.uint8)
    words = pack(codes, bits, piece)
    assert words.shape == (3, 24, piece * bits // 32)
    assert torch.equal(unpack(words, bits), codes.int())


@BITS
def test_neighbours_are_16_bits_apart_in_their_threads_words(bits: int) -> None:
    """Thread 1 of four has inputs 2, 3, 10 and 11 of the first sixteen."""
    codes = torch.zeros(1, 64, dtype=torch.uint8)
    codes[0, [2, 3, 10, 11]] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    words = pack(codes, bits, 64).flatten()
    place = len(words) // 4
    assert words[place] == (1 | 2 << 16 | 3 << bits | 4 << (16 + bits))
    assert words.count_nonzero() == 1


@BITS
def test_a_scale_lies_below_its_zero_point_if_the_dtype_holds_it(bits: int) -> None:
    scales, zeros = torch.tensor([[0.5, 3.0]]), torch.tensor([[0, 7]])
    words, none = pack_scales(scales, zeros, bits, torch.bfloat16)
    assert none is None
    assert torch.equal(words.short().view(torch.bfloat16).float(), scales)
    assert torch.equal(words >> 16, zeros.int())
    middles, _ = pack_scales(scales, None, bits, torch.bfloat16)
    assert (middles >> 16 == 1 << (bits - 1)).all()


@BITS
def test_a_scale_that_the_dtype_does_not_hold_is_kept(bits: int) -> None:
    scales, zeros = torch.tensor([[0.1]]), torch.tensor([[5]])
    for dtype in (torch.bfloat16, torch.float32):
        kept, beside = pack_scales(scales, zeros, bits, dtype)
        assert torch.equal(kept, scales) and beside is not None and torch.equal(beside, zeros.int())


@BITS
def test_zero_points_that_are_too_far_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="zero points"):
        pack_scales(torch.ones(1, 1), torch.tensor([[300]]), bits, torch.bfloat16)
