"""Tokens that a step begins with, to where its layers and its history read them."""

from torch import Tensor

from ops.checks import token_sizes


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
