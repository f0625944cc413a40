"""What a sequence has yet to have computed, and what its copies take along."""

from engine.scheduling.sequence import Sequence


def test_tokens_that_are_sampled_now_count_before_they_are_known() -> None:
    seq = Sequence(0, [1, 2, 3], 3)
    assert (seq.num_tokens, seq.num_uncomputed_tokens) == (3, 3)
    seq.num_computed_tokens, seq.num_pending = 3, 1  # a step in flight computes the prompt, and samples
    assert (seq.num_tokens, seq.num_uncomputed_tokens, seq.num_output_tokens) == (4, 1, 0)
    seq.token_ids.append(9)
    seq.num_pending = 0
    assert (seq.num_tokens, seq.num_uncomputed_tokens, seq.output_ids) == (4, 1, [9])


def test_a_copy_goes_on_by_itself() -> None:
    parent = Sequence(0, [1, 2, 3], 2)
    parent.num_computed_tokens, parent.cumulative_logprob, parent.text.held = 2, -1.5, "ab"
    child = parent.fork(choice=1)
    child.token_ids.append(4)
    child.text.held = ""
    assert (parent.token_ids, parent.text.held) == ([1, 2, 3], "ab")
    assert (child.choice, child.output_ids, child.num_computed_tokens, child.cumulative_logprob) == (1, [3, 4], 2, -1.5)
    assert child.block_table == [], "blocks are the block manager's to share"
