"""Moves of whole blocks: copies within a cache, swaps between device and host."""

from torch import Tensor

from ops.interface import check_shape


def copy_blocks(cache: Tensor, pairs: Tensor) -> None:
    check_shape("pairs", pairs, (None, 2))
    source, target = pairs.long().unbind(1)
    cache[target] = cache[source]


def swap_blocks(source: Tensor, target: Tensor, pairs: Tensor) -> None:
    check_shape("pairs", pairs, (None, 2))
    check_shape("target", target, (None, *source.shape[1:]), source.dtype)
    source_ids, target_ids = pairs.long().unbind(1)
    target[target_ids.to(target.device)] = source[source_ids.to(source.device)].to(target.device)
