"""The one order in which float32 partial sums meet: neighbours first, as a balanced binary tree."""

from collections.abc import Sequence

from torch import Tensor


def add_tree(parts: Sequence[Tensor]) -> Tensor:
    """The sum of a power of two of equal-shaped parts: ((0 + 1) + (2 + 3)) + ...; a single part is
    returned as it is.
    """
    assert parts and len(parts) & (len(parts) - 1) == 0, f"{len(parts)} parts make no balanced tree"
    level = list(parts)
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]
