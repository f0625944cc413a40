"""Block tables: shared, copied, moved and given back."""

import pytest

from engine.executor import Capacity
from engine.sampling_params import SamplingParams
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.sequence import Sequence
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine

SALT = b"salt"
TOKENS = list(range(40))  # two full blocks and a half


def make_blocks(num_blocks: int = 11) -> BlockManager:
    """Ten usable ones by default, and eight of the host."""
    return BlockManager(Capacity(num_blocks, 8), block_size=16, max_model_len=160, max_num_seqs=4)


def computed(blocks: BlockManager, tokens: list[int], salt: bytes | None = SALT) -> Sequence:
    """A sequence whose tokens a step has computed."""
    seq = Sequence(0, list(tokens), len(tokens))
    blocks.admit(seq, salt)
    assert blocks.reserve(seq, len(tokens))
    seq.num_computed_tokens = len(tokens)
    blocks.index_full_blocks(seq, salt)
    return seq


def check(blocks: BlockManager, *seqs: Sequence) -> None:
    """These and no others hold blocks."""
    used: dict[int, int] = {}
    for seq in seqs:
        for block in seq.block_table:
            used[block] = used.get(block, 0) + 1
    blocks.device.check(used)


def test_equal_beginnings_share_full_blocks_within_a_salt() -> None:
    blocks = make_blocks()
    first = computed(blocks, TOKENS)
    second, other, nobodys = (Sequence(0, [*TOKENS[:32], 7], 33) for _ in range(3))
    blocks.admit(second, SALT)
    blocks.admit(other, b"another")
    blocks.admit(nobodys, None)
    assert second.block_table == first.block_table[:2] and second.num_computed_tokens == 32
    assert other.block_table == nobodys.block_table == []
    assert (blocks.num_prefix_hits, blocks.num_prefix_queries) == (32, 40 + 33 + 33)
    check(blocks, first, second)


def test_the_last_token_is_computed_again_whatever_is_cached() -> None:
    blocks = make_blocks()
    computed(blocks, TOKENS[:32])
    again = Sequence(0, TOKENS[:32], 32)
    blocks.admit(again, SALT)
    assert again.num_computed_tokens == 16


def test_a_sequence_gets_all_the_blocks_that_it_asks_for_or_none() -> None:
    blocks = make_blocks()
    seq = computed(blocks, TOKENS)
    held = computed(blocks, list(range(100, 196)))
    assert blocks.device.num_free == 1
    assert not blocks.reserve(seq, 65) and blocks.device.num_free == 1
    assert blocks.reserve(seq, 64) and blocks.device.num_free == 0
    check(blocks, seq, held)
    assert blocks.outgrows(161) and not blocks.outgrows(160)


def test_the_first_to_write_into_a_shared_block_copies_it() -> None:
    blocks = make_blocks()
    parent = computed(blocks, TOKENS)
    child = parent.fork(choice=1)
    blocks.fork(parent, child)
    assert child.block_table == parent.block_table
    shared = parent.block_table[2]
    assert blocks.reserve(child, 41) and blocks.reserve(parent, 41)
    assert parent.block_table[2] == shared and child.block_table[:2] == parent.block_table[:2]
    assert blocks.take_moves() == ([], [], [(shared, child.block_table[2])])
    assert blocks.take_moves() == ([], [], [])
    check(blocks, parent, child)


def test_shared_blocks_are_swapped_once_and_come_back_shared() -> None:
    blocks = make_blocks()
    parent = computed(blocks, TOKENS, salt=None)
    child = parent.fork(choice=1)
    blocks.fork(parent, child)
    was = list(parent.block_table)
    blocks.swap_out([parent, child])
    out, _, _ = blocks.take_moves()
    assert [device for device, _ in out] == was and blocks.host.num_free == 8 - 3
    assert parent.row is child.row is None
    assert blocks.num_blocks_to_swap_in([parent, child], None) == 4, "each of the two writes the last one"
    blocks.swap_in([parent, child], None)
    _, back, _ = blocks.take_moves()
    assert len(back) == 3 and child.block_table == parent.block_table and blocks.host.num_free == 8
    check(blocks, parent, child)


def test_what_is_still_on_the_device_is_not_moved_back() -> None:
    blocks = make_blocks()
    seq = computed(blocks, TOKENS)
    blocks.swap_out([seq])
    blocks.take_moves()
    blocks.swap_in([seq], SALT)
    _, back, _ = blocks.take_moves()
    assert [device for _, device in back] == seq.block_table[2:]


def test_tables_are_padded_with_the_null_block() -> None:
    blocks = make_blocks()
    seq = computed(blocks, TOKENS)
    row = seq.row
    assert row is not None and blocks.rows.tables[row].tolist() == [*seq.block_table, *[0] * 7]
    blocks.free(seq)
    assert not blocks.rows.tables.any() and seq.row is None and seq.block_table == []
    check(blocks)


def test_what_a_distrusted_group_wrote_is_found_no_more() -> None:
    engine = make_engine(Knobs())
    add_request(engine, "r", TOKENS[:36], SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    (lane,) = engine.scheduler.queues.running
    blocks = engine.scheduler.blocks
    again = Sequence(0, TOKENS[:36], 36)
    assert len(blocks.prefixes.on_device(again, b"")) == 2
    blocks.prefixes.distrust(lane.group)
    assert blocks.prefixes.on_device(again, b"") == []
    finish(engine)


@pytest.mark.parametrize("length", [1, 16, 17, 160])
def test_num_blocks(length: int) -> None:
    assert make_blocks().num_blocks(length) == len(range(0, length, 16))


def test_prefix_hits_are_counted_and_isolated_by_salt():
    engine = make_engine(Knobs())
    prompt = [3, 4] * 40
    for request_id, salt in (("first", None), ("second", None), ("salted", "tenant")):
        add_request(engine, request_id, prompt, SamplingParams(max_tokens=2, ignore_eos=True), cache_salt=salt)
        assert finish(engine)[request_id].num_cached_tokens == (64 if request_id == "second" else 0)
    assert engine.stats().num_prefix_hits == 64
