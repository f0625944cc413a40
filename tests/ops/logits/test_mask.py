import pytest
import torch

from ops.interface import Ops
from tests.ops.ragged import ragged


def words_of(allowed: set[int], vocab_size: int) -> list[int]:
    """A row's words: signed, as int32 has them."""
    words = [sum(1 << bit for bit in range(32) if start + bit in allowed) for start in range(0, vocab_size, 32)]
    return [word - 2**32 if word >= 2**31 else word for word in words]


@pytest.mark.parametrize("vocab_size", [31, 32, 50, 96])
@pytest.mark.parametrize("allowed", [[{0, 4, 31}, None, {29, 30}], [None, None, set()], [{1}, {0, 30}, {5}]])
def test_rows_that_have_words_keep_what_these_allow(
    ops: Ops, vocab_size: int, allowed: list[set[int] | None], device: torch.device
) -> None:
    logits = torch.randn(3, vocab_size, device=device)
    want = logits.clone()
    for row, some in enumerate(allowed):
        banned = [] if some is None else [token for token in range(vocab_size) if token not in some]
        want[row, banned] = -torch.inf
    words = [[] if some is None else words_of(some, vocab_size) for some in allowed]
    ops.apply_mask(logits, *ragged(words, device))
    assert torch.equal(logits, want)


def test_words_that_are_no_masks_are_refused(ops: Ops, device: torch.device) -> None:
    with pytest.raises(ValueError, match="3 words are no masks of 50 tokens"):
        ops.apply_mask(torch.zeros(2, 50, device=device), *ragged([[1, 2], [3]], device))
