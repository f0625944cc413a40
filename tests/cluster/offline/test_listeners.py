"""Threads that wait for an engine's outputs."""

import pytest

from cluster.offline.listeners import Listeners
from engine.errors import EngineDead
from engine.outputs import RequestOutput


def die() -> None:
    raise EngineDead("it is lost")


def test_each_gets_what_comes_while_it_listens() -> None:
    listeners = Listeners(die)
    first, second, third = ([RequestOutput(name, 0, [], [], True)] for name in "abc")
    listeners.tell(first)
    with listeners.one() as one:
        listeners.tell(second)
        with listeners.one() as other:
            listeners.tell(third)
            assert other() == third
        assert [one(), one()] == [second, third]
        with pytest.raises(EngineDead, match="it is lost"):
            one()
