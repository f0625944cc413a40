"""What a gateway tells HAProxy of a full queue, and what it hears."""

import pytest

from cluster.headers.full_queue import ANY_ROOM, PAGES, RESUMES, ROOM, WAIT, num_refused, room_headers
from engine.admission.queue_limits import Room


@pytest.mark.parametrize(
    ("room", "told", "wait"),
    [
        (Room(31, 2.0), "16", "2"),
        (Room(1, 0.1), "1", "1"),
        (Room(0, 7.6), "0", "8"),
        (Room(-3.5, 500.0), "0", "60"),
        (Room(float("inf"), 3.0), str(ANY_ROOM), "3"),
        (None, str(ANY_ROOM), "1"),
    ],
)
def test_haproxy_is_told_half_of_the_room(room: Room | None, told: str, wait: str) -> None:
    headers = room_headers(room, resumes=True, has_pages=False)
    assert headers == {ROOM: told, WAIT: wait, RESUMES: "1", PAGES: "0"}


@pytest.mark.parametrize(("value", "num"), [("41", 41), ("", 0), ("-1", 0), ("x", 0), ("9" * 10, 0), ("\u0663", 0)])
def test_only_a_number_is_a_number_of_refusals(value: str, num: int) -> None:
    assert num_refused(value) == num
