"""Which free block is reused next, and what is found of those that are free."""

import pytest

from engine.scheduling.block_pool import BlockPool, OutOfBlocks


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(4, first=1)
    assert pool.num_usable == 3
    assert sorted(pool.allocate() for _ in range(3)) == [1, 2, 3]
    with pytest.raises(OutOfBlocks, match="all 3 blocks"):
        pool.allocate()


def test_contents_that_may_be_wanted_again_are_overwritten_last_and_the_oldest_first() -> None:
    pool = BlockPool(4)
    blocks = [pool.allocate() for _ in range(4)]
    for block in (1, 3):
        pool.register(block, bytes([block]))
    for block in (3, 0, 1, 2):
        pool.release(block)
    assert [pool.allocate() for _ in blocks[:2]] == [2, 0], "they hold nothing that is looked for"
    assert (pool.lookup(bytes([1])), pool.lookup(bytes([3]))) == (1, 3)
    assert pool.allocate() == 3
    assert (pool.lookup(bytes([1])), pool.lookup(bytes([3]))) == (1, None)


def test_a_free_block_that_is_found_is_in_use_again() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.register(block, b"content")
    pool.release(block)
    pool.share(block)
    pool.share(block)
    assert pool.references(block) == 2 and pool.num_free == 1
    pool.check({block: 2})


def test_of_equal_contents_the_first_is_found_and_what_is_forgotten_is_not() -> None:
    pool = BlockPool(3)
    first, second, _ = (pool.allocate() for _ in range(3))
    pool.register(first, b"content")
    pool.register(second, b"content")
    assert pool.lookup(b"content") == first
    pool.release(first)
    pool.forget(b"content")
    assert pool.lookup(b"content") is None
    assert pool.allocate() == first
