"""Who is taken over, and when."""

import pytest

from cluster.api.errors import Unavailable
from cluster.api.responses.resuming.readers import Reader, Readers


def begun(readers: Readers, last: int, num_stored: int = 0) -> Reader:
    reader = Reader(last)
    readers.begin("one", reader, num_stored)
    return reader


def make(readers: Readers, reader: Reader, num_events: int) -> None:
    reader.num_events = num_events
    readers.made("one", reader)


@pytest.mark.parametrize(("last", "num_stored"), [(7, 0), (3, 0), (10, 0), (11, 11)])
def test_an_event_that_exists_takes_over_at_once(last: int, num_stored: int) -> None:
    """One that the reader before has, or says it has, or that is stored."""
    readers = Readers()
    before = begun(readers, 7)
    make(readers, before, 10)
    after = begun(readers, last, num_stored)
    assert before.is_set() and not after.is_set()
    assert not readers.end("one", before)
    assert readers.end("one", after)


def test_an_event_that_may_not_exist_takes_over_once_it_is_reached() -> None:
    readers = Readers()
    before = begun(readers, 0)
    make(readers, before, 10)
    after = begun(readers, 12)
    for number in (3, 11):
        make(readers, after, number)
        assert not before.is_set()
    make(readers, after, 12)
    assert before.is_set() and not after.is_set()
    assert readers.end("one", after)


def test_who_never_gets_there_leaves_the_other_alone() -> None:
    readers = Readers()
    before = begun(readers, 0)
    after = begun(readers, 12)
    assert not readers.end("one", after), "the other still reads"
    assert not before.is_set()
    assert readers.end("one", before)


@pytest.mark.parametrize("last", [5, 12])
def test_there_are_never_three(last: int) -> None:
    readers = Readers()
    first, second = begun(readers, 0), begun(readers, 12)
    with pytest.raises(Unavailable):
        begun(readers, 13)
    assert not first.is_set() and not second.is_set()
    third = begun(readers, last)
    assert second.is_set() and not first.is_set(), "who said as much or more is no longer waited for"
    make(readers, third, last)
    assert first.is_set() and readers.end("one", third)
    assert readers.end("one", begun(readers, 99)), "nobody is left"
