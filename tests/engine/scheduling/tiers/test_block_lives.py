"""What is known of the time that blocks keep their contents."""

import random

from engine.scheduling.block_pool import BlockPool
from engine.scheduling.tiers.block_lives import NUM_KEPT, NUM_WATCHED, BlockLives


def content(number: int) -> bytes:
    return number.to_bytes(16, "big")


def write(pool: BlockPool, number: int) -> int:
    """A block that is filled, can be found, and is not used any more."""
    block = pool.allocate()
    pool.register(block, content(number))
    pool.release(block)
    return block


def test_a_block_lives_until_it_is_reused_while_it_could_be_found() -> None:
    pool = BlockPool(3, first=1)
    first = write(pool, 1)
    pool.share(first)
    pool.lives.found(first)
    pool.release(first)
    lives = pool.lives.take()
    assert lives is not None and (len(lives.reuse_gaps), lives.lifetimes) == (1, [])
    assert pool.lives.take() is None
    second = write(pool, 2)
    assert first != second, "there was a block without a content"
    assert pool.lives.take() is None
    assert pool.allocate() == first
    lives = pool.lives.take()
    assert lives is not None
    assert 0 <= lives.idle_times[0] <= lives.lifetimes[0] and lives.reuse_gaps == []


def test_a_block_that_cannot_be_found_is_not_evicted() -> None:
    pool = BlockPool(2, first=1)
    for _ in range(3):
        pool.release(pool.allocate())
    write(pool, 1)
    pool.forget(content(1))
    pool.allocate()
    assert pool.lives.take() is None


def test_a_sample_of_many_blocks_is_watched_and_of_few_all() -> None:
    for num_blocks, num_watched in ((10, 10), (NUM_WATCHED, NUM_WATCHED), (10 * NUM_WATCHED, NUM_WATCHED)):
        pool = BlockPool(num_blocks)
        for number in range(2 * num_blocks):  # each block twice
            write(pool, number)
        lives = pool.lives.take()
        assert lives is not None and len(lives.lifetimes) == num_watched


def test_what_nobody_takes_is_bounded() -> None:
    lives, rng = BlockLives(8), random.Random(1)
    for block in range(8):
        lives.allocated(block, evicts=False)
    for _ in range(2 * NUM_KEPT):
        lives.found(rng.randrange(8))
        lives.allocated(rng.randrange(8), evicts=True)
    taken = lives.take()
    assert taken is not None and {len(times) for times in taken} == {NUM_KEPT}
