"""Moves of whole blocks. Host memory that is pinned is read and written by the same kernel, so no
move waits for the host.

Moves are launched in the current stream; the caller must make other streams wait for them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.interface import check_shape
from ops.reference.attention import blocks as reference

WORDS_AT_ONCE = 2048


@triton.jit
def move_kernel(source, target, pairs, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (pairs, tiles of a block): WORDS words of 32 bits a block."""
    pair = pairs + tl.program_id(0) * 2
    cells = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cells < WORDS
    words = tl.load(source + tl.load(pair).to(tl.int64) * WORDS + cells, mask=exists)
    tl.store(target + tl.load(pair + 1).to(tl.int64) * WORDS + cells, words, mask=exists)


def copy_blocks(cache: Tensor, pairs: Tensor) -> None:
    """cache [num_blocks, ...]: block pairs[i, 1] becomes a copy of block pairs[i, 0]; pairs [*, 2]
    int32, disjoint.
    """
    _move(cache, cache, pairs)


def swap_blocks(source: Tensor, target: Tensor, pairs: Tensor) -> None:
    """target block pairs[i, 1] becomes a copy of source block pairs[i, 0]; one cache may be pinned
    memory of the host.
    """
    check_shape("target", target, (None, *source.shape[1:]), source.dtype)
    on_gpu = source.is_cuda or target.is_cuda
    if on_gpu and not all(cache.is_cuda or cache.is_pinned() for cache in (source, target)):
        reference.swap_blocks(source, target, pairs)
    else:
        _move(source, target, pairs)


def _move(source: Tensor, target: Tensor, pairs: Tensor) -> None:
    check_shape("pairs", pairs, (None, 2), torch.int32)
    num_pairs = pairs.shape[0]
    if num_pairs == 0 or source.numel() == 0:
        return
    num_bytes = source[0].numel() * source.element_size()
    if num_bytes % 4:
        raise ValueError(f"blocks of {num_bytes} bytes are no whole number of 32-bit words")
    move_kernel[(num_pairs, triton.cdiv(num_bytes // 4, WORDS_AT_ONCE))](
        _words(source), _words(target), pairs, WORDS=num_bytes // 4, BLOCK=WORDS_AT_ONCE
    )


def _words(cache: Tensor) -> Tensor:
    return cache.view(-1).view(torch.int32)
