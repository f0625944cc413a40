"""Turns of an event loop, counted."""

import asyncio
from itertools import pairwise

from cluster.api.front.one_a_turn import OneATurn

NUM = 20


async def test_the_first_does_not_wait() -> None:
    went: list[int] = []

    async def go() -> None:
        await OneATurn().wait()
        went.append(1)

    task = asyncio.create_task(go())
    await asyncio.sleep(0)
    assert went == [1]
    await task


async def test_who_comes_meanwhile_waits_for_one_turn_and_not_for_all() -> None:
    """As a request that is refused, beside many that were let in at once."""
    turns = OneATurn()
    went: list[int] = []

    async def go(number: int) -> None:
        await turns.wait()
        went.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(NUM)]
    counts = []
    while len(went) < NUM:
        await asyncio.sleep(0)
        counts.append(len(went))
    assert went == list(range(NUM))
    assert max(later - earlier for earlier, later in pairwise(counts)) == 1
    await asyncio.gather(*tasks)


async def test_who_is_cancelled_takes_no_turn() -> None:
    turns = OneATurn()
    await turns.wait()
    lost = [asyncio.create_task(turns.wait()) for _ in range(NUM)]
    last = asyncio.create_task(turns.wait())
    await asyncio.sleep(0)
    for task in lost:
        task.cancel()
    await last
    await asyncio.gather(*lost, return_exceptions=True)
    assert all(task.cancelled() for task in lost[1:])  # the first one went before
