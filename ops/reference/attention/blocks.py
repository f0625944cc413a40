"""Moves of whole blocks, copies within a cache and swaps between device and host; and of tokens."""

from torch import Tensor

from ops.checks import token_sizes
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


def place_tokens(
    input_ids: Tensor, sources: Tensor, drawn: Tensor, slots: Tensor | None, token_ids: Tensor | None
) -> None:
    """In place on input_ids [T] int32: where sources [T] int32 is not negative, the token
    drawn[sources]. Then token_ids[slots] = input_ids, if there are any; all int32.
    """
    token_sizes(input_ids, sources, drawn, slots, token_ids)
    taken = drawn.index_select(0, sources.clamp(min=0))
    input_ids.copy_(taken.where(sources >= 0, input_ids))
    if slots is not None and token_ids is not None:
        token_ids.index_copy_(0, slots.long(), input_ids)
