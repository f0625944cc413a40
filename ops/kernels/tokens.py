"""Tokens that a step begins with, to where its layers and its history read them: one launch."""

import triton
import triton.language as tl
from torch import Tensor

from ops.checks import token_sizes

ROWS = 256  # of a program


@triton.jit(do_not_specialize=["num_rows"])
def place_kernel(input_ids, sources, drawn, slots, token_ids, num_rows, HAS_HISTORY: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (tiles of rows,)."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = rows < num_rows
    source = tl.load(sources + rows, mask=exists, other=-1)
    known = tl.load(input_ids + rows, mask=exists, other=0)
    taken = tl.load(drawn + source, mask=source >= 0, other=0)
    ids = tl.where(source >= 0, taken, known)
    tl.store(input_ids + rows, ids, mask=exists)
    if HAS_HISTORY:
        tl.store(token_ids + tl.load(slots + rows, mask=exists, other=0), ids, mask=exists)


def place_tokens(
    input_ids: Tensor, sources: Tensor, drawn: Tensor, slots: Tensor | None, token_ids: Tensor | None
) -> None:
    """In place on input_ids [T] int32: where sources [T] int32 is not negative, the token
    drawn[sources]. Then token_ids[slots] = input_ids, if there are any; all int32.
    """
    num_rows = token_sizes(input_ids, sources, drawn, slots, token_ids)
    if num_rows:
        place_kernel[(triton.cdiv(num_rows, ROWS),)](
            input_ids, sources, drawn, slots, token_ids, num_rows, HAS_HISTORY=token_ids is not None, BLOCK=ROWS
        )
