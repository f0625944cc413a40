"""Which blocks that a sequence finds lack the draft model's part."""

import pytest

from engine.executor import Capacity
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.drafts import holes
from engine.scheduling.drafts.holes import Holes
from engine.scheduling.sequence import Sequence


def indexed(blocks, num_blocks, token_id=7):
    """A sequence whose full blocks are in the index."""
    seq = Sequence(0, [token_id] * (16 * num_blocks + 1), 1)
    blocks.admit(seq, b"")
    blocks.reserve(seq, seq.num_tokens)
    seq.num_computed_tokens = seq.num_tokens
    blocks.index_full_blocks(seq, b"")
    return seq


@pytest.fixture
def blocks():
    return BlockManager(Capacity(40, 10), block_size=16, max_model_len=200, max_num_seqs=8)


def test_blocks_are_whole_up_to_the_first_hole(blocks):
    seq, found = indexed(blocks, 5), Holes()
    assert found.num_whole(seq, 5) == 5
    found.leave(blocks, seq, 2, 4)
    assert [found.num_whole(seq, num_blocks) for num_blocks in (1, 2, 3, 5)] == [1, 2, 2, 2]
    found.fill(blocks, seq, 1, 3)
    assert found.num_whole(seq, 5) == 3
    found.fill(blocks, seq, 3, 5)
    assert found.num_whole(seq, 5) == 5


def test_what_is_filled_is_not_so_in_a_copy_on_the_host(blocks):
    seq, found = indexed(blocks, 3), Holes()
    found.leave(blocks, seq, 1, 3)
    blocks.host.register(blocks.host.allocate(), seq.block_hashes[1])
    found.fill(blocks, seq, 0, 3)
    assert found.num_whole(seq, 3) == 1 and found.num_whole(seq, 1) == 1


def test_a_copy_that_is_made_before_the_step_lacks_what_it_fills(blocks):
    """Blocks that are written wait for their copies until a later step begins."""
    seq, found = indexed(blocks, 2), Holes()
    found.leave(blocks, seq, 0, 2)
    assert not blocks.host_tier.may_save(seq.block_table[0])
    blocks.take_moves(is_step=True)
    assert blocks.host_tier.may_save(seq.block_table[0])
    found.fill(blocks, seq, 0, 2)
    assert found.num_whole(seq, 2) == 0


def test_a_block_in_whose_place_an_equal_one_is_found_tells_nothing_of_it(blocks):
    seq = indexed(blocks, 3)
    twin, found = Sequence(0, list(seq.token_ids), 1), Holes()
    blocks.admit(twin, None)
    blocks.reserve(twin, twin.num_tokens)
    twin.num_computed_tokens = twin.num_tokens
    blocks.index_full_blocks(twin, b"")
    found.leave(blocks, twin, 0, 3)
    assert found.num_whole(seq, 3) == 3
    found.leave(blocks, seq, 0, 3)
    found.fill(blocks, twin, 0, 3)
    assert found.num_whole(seq, 3) == 0


def test_the_oldest_are_forgotten(blocks, monkeypatch):
    monkeypatch.setattr(holes, "_MAX_BLOCKS", 3)
    one, other, found = indexed(blocks, 2), indexed(blocks, 2, token_id=8), Holes()
    found.leave(blocks, one, 0, 2)
    found.leave(blocks, other, 0, 2)
    assert (found.num_whole(one, 1), found.num_whole(one, 2), found.num_whole(other, 2)) == (1, 1, 0)
