"""What a gateway tells HAProxy of a full queue, and what it hears."""

import pytest

from cluster.headers.full_queue import (
    ANY_ROOM,
    LATEST,
    PAGES,
    RESUMES,
    ROOM,
    WAIT,
    LatestNumbers,
    num_refused,
    room_headers,
)
from engine.admission.queue_limits import Room


@pytest.mark.parametrize(
    ("room", "told", "wait"),
    [
        (Room(31, 2.0), "31", "2"),
        (Room(0.5, 0.1), "1", "1"),
        (Room(0, 7.6), "0", "8"),
        (Room(-3.5, 500.0), "0", "60"),
        (Room(float("inf"), 3.0), str(ANY_ROOM), "3"),
        (None, str(ANY_ROOM), "1"),
    ],
)
def test_haproxy_is_told_how_many_more_have_room(room: Room | None, told: str, wait: str) -> None:
    headers = room_headers(room, 100, resumes=True, has_pages=False)
    assert headers == {LATEST: "100", ROOM: told, WAIT: wait, RESUMES: "1", PAGES: "0"}


def test_each_haproxy_has_numbers_of_its_own() -> None:
    """The latest counts, in whatever order requests come."""
    numbers = LatestNumbers()
    held = [numbers.note(value) for value in ("7.3", "7.9", "8.1", "7.8")]
    assert [latest.number for latest in held] == [9, 9, 1, 9]


def test_numbers_begin_anew_after_32_bits() -> None:
    """What was let in before may still come after it."""
    numbers = LatestNumbers()
    held = numbers.note(f"7.{2**32 - 2}")
    told = []
    for number in (2**32 - 1, 0, 2, 2**32 - 3, 1):
        numbers.note(f"7.{number}")
        told.append(held.number)
    assert told == [2**32 - 1, 0, 2, 2, 2]


@pytest.mark.parametrize("value", ["", "7", ".", "7.", ".7", "7.-1", "x.1", "1.2.3", "7." + "9" * 11, "\u0663.1"])
def test_what_no_haproxy_writes_is_not_noted(value: str) -> None:
    numbers = LatestNumbers()
    held = numbers.note("7.1")
    assert numbers.note(value).number == 0
    assert held.number == 1


def test_a_haproxy_is_known_while_it_waits_for_an_answer() -> None:
    """However many others there are; of the others nothing is kept."""
    numbers = LatestNumbers()
    held = numbers.note("7.500")
    for other in range(1000, 2000):
        numbers.note(f"{other}.9")
    assert numbers.note("7.2") is held and held.number == 500
    assert numbers.note("1000.2").number == 2


@pytest.mark.parametrize(("value", "num"), [("41", 41), ("", 0), ("-1", 0), ("x", 0), ("9" * 11, 0), ("\u0663", 0)])
def test_only_a_number_is_a_number_of_refusals(value: str, num: int) -> None:
    assert num_refused(value) == num
