"""Causal attention over the paged cache: decode rows in parallel over splits of their keys, prefill
rows a tile at a time.

A sequence with one query row is decoded (`decode`); any other is prefilled (`prefill`). All heads
that share a key-value head are rows of one product. Grids have a fixed size; the work is read from
the metadata on the device (`items`), so nothing waits for the host and a CUDA graph stays valid
when the batch changes. Both kernels take their arithmetic from `softmax`.
"""

import importlib
import math

import torch
import triton
from torch import Tensor

from ops.interface import AttentionMetadata, check_shape
from ops.kernels.attention.decode import (
    TENSOR_CORE_ROWS,
    decode_kernel,
    decode_options,
    fold_kernel,
    programs_of_a_processor,
)
from ops.kernels.attention.items import LEAST_SEQUENCES
from ops.kernels.attention.prefill import prefill_kernel, prefill_options
from ops.kernels.attention.softmax import SPLIT
from ops.kernels.chain import chained
from ops.kernels.device import HOPPER, capability, check_float8, num_processors

try:
    hopper_decode = importlib.import_module("ops.kernels.attention.hopper_decode")
except (ImportError, AttributeError):  # Gluon is experimental: another Triton may have it elsewhere
    hopper_decode = None  # type: ignore[assignment]
HEAD_DIMS = (16, 32, 64, 128)
FOLDING_PROGRAMS = 2  # of a processor that run at once, of any kind
MOST_FOLDED = 16  # heads to a key-value head: of more, registers would spill


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """query [T, H, head_dim] dtype; caches [num_blocks, K, block_size, head_dim] dtype or
    float8_e4m3fn -> as query.

    head_dim is one of HEAD_DIMS. A float8 cache is read as float16.
    """
    _check(query, key_cache, value_cache, metadata)
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    num_rows, num_heads, _ = query.shape
    num_sequences = metadata.context_lens.shape[0]
    output = torch.empty_like(query)
    if num_rows == 0:
        return output
    group = num_heads // num_kv_heads
    constants = {
        "KV_HEADS": num_kv_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "SEQUENCES": max(LEAST_SEQUENCES, triton.next_power_of_2(num_sequences)),
        "FLOAT8": key_cache.dtype == torch.float8_e4m3fn,
    }
    max_splits = -(-metadata.max_context_len // SPLIT.value)
    arrivals = _arrivals(metadata, num_heads, num_kv_heads, max_splits, query.device)
    about = key_cache.dtype, head_dim, group, capability(query.device), num_kv_heads, num_sequences
    options = decode_options(*about, folds=arrivals is not None)
    tensors = metadata.query_starts, metadata.context_lens, metadata.block_tables
    sizes = num_sequences, metadata.block_tables.shape[1]
    log2_scale = scale * math.log2(math.e)
    if metadata.max_query_len > 1:
        prefill_kernel[(num_processors(query.device),)](
            query, key_cache, value_cache, output, *tensors, *sizes, log2_scale, **constants, **prefill_options(options)
        )
    splits = _split_buffers(query, num_sequences, max_splits)
    launch = num_processors(query.device), num_sequences * max_splits * num_kv_heads
    read = query, key_cache, value_cache, output, *splits, *tensors
    constants |= chained(query.device)
    if arrivals is None and _is_for_hopper(query, key_cache, group, num_sequences):
        hopper_decode.launch_decode(*launch, *read, *sizes, max_splits, log2_scale, **constants)
    else:
        num_programs = min(launch[0] * programs_of_a_processor(head_dim), launch[1])
        options |= {"FOLDED": triton.next_power_of_2(group)}
        decode_kernel[(num_programs,)](*read, arrivals, *sizes, max_splits, log2_scale, **constants, **options)
    if max_splits > 1 and arrivals is None:
        _fold(output, splits, metadata, max_splits)
    return output


def _fold(output: Tensor, splits: tuple[Tensor, Tensor, Tensor], metadata: AttentionMetadata, max_splits: int) -> None:
    """What each sequence's splits have given, into output [T, H, head_dim]."""
    _, num_heads, head_dim = output.shape
    fold_kernel[(metadata.context_lens.shape[0], num_heads)](
        *splits, output, metadata.query_starts, metadata.context_lens, max_splits,
        HEADS=num_heads, HEAD_DIM=head_dim, num_warps=1, **chained(output.device),
    )  # fmt: skip


def _is_for_hopper(query: Tensor, key_cache: Tensor, group: int, num_sequences: int) -> bool:
    """Whether `hopper_decode` takes such rows."""
    if hopper_decode is None or query.device.type == "cpu" or capability(query.device)[0] != HOPPER:
        return False
    return bool(hopper_decode.fits(key_cache.dtype, query.shape[2], group, key_cache.shape[2], num_sequences))


def _arrivals(
    metadata: AttentionMetadata, num_heads: int, num_kv_heads: int, max_splits: int, device: torch.device
) -> Tensor | None:
    """None where a kernel of its own is sooner: a program with several items would wait for its
    count each time.
    """
    num_items = metadata.context_lens.shape[0] * max_splits * num_kv_heads
    is_sooner = max_splits > 1 and num_items <= FOLDING_PROGRAMS * num_processors(device)
    return metadata.arrivals if is_sooner and num_heads // num_kv_heads <= MOST_FOLDED else None


def _check(query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata) -> None:
    check_shape("key_cache", key_cache, (None, None, None, None))
    _, num_kv_heads, _, head_dim = key_cache.shape
    is_float8 = key_cache.dtype == torch.float8_e4m3fn
    check_shape("value_cache", value_cache, tuple(key_cache.shape), key_cache.dtype)
    check_shape("query", query, (None, None, head_dim), None if is_float8 else key_cache.dtype)
    num_heads, num_sequences = query.shape[1], metadata.context_lens.shape[0]
    check_shape("context_lens", metadata.context_lens, (num_sequences,), torch.int32)
    check_shape("query_starts", metadata.query_starts, (num_sequences + 1,), torch.int32)
    check_shape("block_tables", metadata.block_tables, (num_sequences, None), torch.int32)
    if metadata.arrivals is not None:
        check_shape("arrivals", metadata.arrivals, (num_sequences, num_kv_heads), torch.int32)
    most = 16 if key_cache.dtype == torch.float32 and head_dim > 64 else TENSOR_CORE_ROWS  # without spills
    if num_heads % num_kv_heads or num_heads // num_kv_heads > most:
        raise ValueError(
            f"{num_heads} query heads cannot share {num_kv_heads} key-value heads, evenly and {most} at most"
        )
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim={head_dim} is not 16, 32, 64 or 128")
    if is_float8:
        check_float8(query.device)


def _split_buffers(query: Tensor, num_sequences: int, max_splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """For what a split gives: the largest score and the sum of weights [S, max_splits, H], the
    values [..., head_dim].
    """
    _, num_heads, head_dim = query.shape
    largest = query.new_empty((num_sequences, max_splits, num_heads), dtype=torch.float32)
    return largest, torch.empty_like(largest), query.new_empty((*largest.shape, head_dim), dtype=torch.float32)
