"""Which tokens a request's parameters rule out at a sequence's next position."""

from collections.abc import Collection

import numpy as np

from engine.scheduling.sequence import Sequence, SequenceGroup
from engine.scheduling.token_sets.requested import NO_PAIRS

WORD_BITS = 32


def banned_ids(group: SequenceGroup, seq: Sequence, position: int) -> set[int]:
    """Stop tokens before min_tokens, the last tokens of bad words."""
    return banned_now(group, seq, position).union(group.bad_words.always())


def banned_now(group: SequenceGroup, seq: Sequence, position: int) -> set[int]:
    """Those of them that are not banned at every position (`SequenceGroup.token_set`). Where a
    grammar holds the answer, its mask says whether it may end: see `engine.batch.masks`. `position`
    is that of the next token, or of the one after it: see `banned_pairs`.
    """
    banned: set[int] = set()
    if position - seq.num_prompt_tokens < group.params.min_tokens:
        banned |= group.stop_token_ids
        if seq.matcher is not None:
            banned.difference_update(group.eos_token_ids)
    if group.bad_words and position == len(seq.token_ids):
        banned.update(group.bad_words.after(_last(seq, group.bad_words.longest)))
    return banned


def banned_pairs(group: SequenceGroup, seq: Sequence, position: int) -> np.ndarray:
    """At the position after the next token's, which is not known yet: pairs of what it may be, and
    what is then banned, [*, 2] int32.
    """
    num_unknown = position - len(seq.token_ids)
    if num_unknown == 0 or not group.bad_words:
        return NO_PAIRS
    assert num_unknown == 1, f"{num_unknown} tokens are not known"
    return group.bad_words.pairs_after(_last(seq, group.bad_words.longest))


def _last(seq: Sequence, count: int) -> list[int]:
    """Of the answer's tokens, however many there are."""
    return seq.token_ids[max(seq.num_prompt_tokens, len(seq.token_ids) - count) :]


def leave_nothing(group: SequenceGroup, seq: Sequence, mask: np.ndarray | None = None, num_drafts: int = 0) -> bool:
    """Whether the request's parameters, and its grammar's mask [W] int32 if it has one, allow no
    token after those that are known and so many drafts.
    """
    banned = banned_ids(group, seq, len(seq.token_ids) + num_drafts) if group.has_bias else set()
    if len(words := group.token_set.words):
        return nothing_left(None, banned, words if mask is None else words & mask)
    return nothing_left(group.params.allowed_token_ids, banned, mask)


def nothing_left(allowed: Collection[int] | None, banned: set[int], mask: np.ndarray | None) -> bool:
    """As `leave_nothing`, of token ids; None: all are allowed."""
    if allowed is None:  # a vocabulary is larger than what can be banned
        return mask is not None and not _without(mask, banned).any()
    left = np.array(sorted(set(allowed) - banned), np.int64)
    if mask is None:
        return not len(left)
    return not (mask.view(np.uint32)[left // WORD_BITS] >> (left % WORD_BITS).astype(np.uint32) & 1).any()


def _without(mask: np.ndarray, banned: set[int]) -> np.ndarray:
    left = mask.view(np.uint32).copy()
    for token_id in banned:
        if token_id < WORD_BITS * len(left):  # a tokenizer may have more tokens than the model
            left[token_id // WORD_BITS] &= np.uint32(0xFFFFFFFF ^ 1 << token_id % WORD_BITS)
    return left
