"""How codes of 4 and 8 bits lie in memory: a piece of a row's inputs as words of 32 bits, in the
order in which the threads of a product have them.

Of sixteen inputs, a thread of tensor cores has numbers 2q, 2q + 1, 2q + 8 and 2q + 9, for one q
below four. So all that it needs of a piece are neighbouring words.
"""

import torch
from torch import Tensor

SMALLEST_ZERO = {4: -48, 8: 0}  # of zero points that the model's dtype takes from codes exactly
LARGEST_ZERO = {4: 64, 8: 256}


def pack(codes: Tensor, bits: int, piece: int) -> Tensor:
    """codes [rows, in] uint8, of so many bits, `in` whole pieces of a multiple of 32 -> [pieces,
    rows, piece * bits / 32] int32.
    """
    parts = _to_words(codes.view(len(codes), -1, piece), bits).int()  # [rows, pieces, words, codes of a word]
    words = torch.zeros(parts.shape[:-1], dtype=torch.int32, device=codes.device)
    for place in range(parts.shape[-1]):
        words |= parts[..., place] << (bits * place)
    return words.transpose(0, 1).contiguous()


def unpack(words: Tensor, bits: int) -> Tensor:
    """What `pack` was given, [rows, in] int32."""
    places = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    parts = (words.transpose(0, 1)[..., None] >> places) & ((1 << bits) - 1)
    return _from_words(parts, bits).flatten(1)


def _to_words(pieces: Tensor, bits: int) -> Tensor:
    """[rows, pieces, inputs] -> [rows, pieces, words, codes of a word]. Of a word's codes, those of
    neighbouring inputs are 16 bits apart.
    """
    rows, count, _ = pieces.shape
    if bits == 4:  # two sixteens of a thread's inputs make a word
        thread = pieces.view(rows, count, -1, 2, 2, 4, 2).permute(0, 1, 5, 2, 6, 3, 4)
    else:
        thread = pieces.view(rows, count, -1, 2, 4, 2).permute(0, 1, 4, 2, 5, 3)
    return thread.flatten(4).flatten(2, 3)


def _from_words(parts: Tensor, bits: int) -> Tensor:
    """The inverse of `_to_words`."""
    rows, count = parts.shape[:2]
    if bits == 4:
        thread = parts.reshape(rows, count, 4, -1, 2, 2, 2)  # q, words, odd, sixteen, eight
        return thread.permute(0, 1, 3, 5, 6, 2, 4).flatten(2)
    return parts.reshape(rows, count, 4, -1, 2, 2).permute(0, 1, 3, 5, 2, 4).flatten(2)


def pack_scales(scales: Tensor, zeros: Tensor | None, bits: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """scales [pieces, rows] float32, zeros alike or None: all are the middle code. Both as int32
    words and None; or as they are, if dtype does not hold the scales.

    Raises ValueError for zero points that are too far from the codes.
    """
    if zeros is not None and not bool(((zeros >= SMALLEST_ZERO[bits]) & (zeros <= LARGEST_ZERO[bits])).all()):
        raise ValueError(f"zero points of {bits} bits are from {SMALLEST_ZERO[bits]} to {LARGEST_ZERO[bits]}")
    if dtype == torch.float32 or not bool(((scales.to(dtype).float() == scales) | scales.isnan()).all()):
        return scales.float().contiguous(), None if zeros is None else zeros.int().contiguous()
    return words_of(scales.to(dtype), zeros, bits), None


def words_of(scales: Tensor, zeros: Tensor | None, bits: int) -> Tensor:
    """int32: a scale of 16 bits below its zero point."""
    upper = torch.full_like(scales, 1 << (bits - 1), dtype=torch.int32) if zeros is None else zeros.int()
    return ((scales.view(torch.int16).int() & 0xFFFF) | (upper << 16)).contiguous()
