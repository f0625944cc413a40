"""What is let in counts at once, and only once."""

import asyncio

import pytest

from cluster.api.arrivals import Arrivals, arrived
from cluster.api.service import NOBODY, Arriving
from engine.admission.queue_limits import NOTHING, Load

TWO = Load(1, 20)


def test_a_request_counts_until_it_counts_elsewhere_or_ends() -> None:
    arrivals = Arrivals()
    with arrivals.one(TWO):
        assert arrivals.load == TWO
        with arrivals.one(TWO):
            assert arrivals.load == TWO + TWO
            arrived()
            arrived()
            assert arrivals.load == TWO
    assert arrivals.load == NOTHING
    arrived()  # of no request


def test_one_that_fails_counts_no_more() -> None:
    arrivals = Arrivals()
    with pytest.raises(ValueError, match="wrong"), arrivals.one(TWO):
        raise ValueError("wrong")
    assert arrivals.load == NOTHING


async def test_a_task_of_the_request_may_say_so() -> None:
    arrivals = Arrivals()

    async def say() -> None:
        arrived()

    with arrivals.one(TWO):
        await asyncio.create_task(say())
        assert arrivals.load == NOTHING


def test_what_arrives_of_a_key() -> None:
    arrivals = Arrivals()
    with arrivals.one(TWO, "greedy"), arrivals.one(TWO, "modest"):
        assert arrivals.beside("greedy") == Arriving(TWO + TWO, TWO)
        assert arrivals.beside("third") == Arriving(TWO + TWO, NOTHING)
        arrived()
        assert arrivals.beside("modest") == Arriving(TWO, NOTHING)
    assert arrivals.beside("greedy") == NOBODY
