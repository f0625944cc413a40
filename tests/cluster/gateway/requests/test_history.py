"""What a gateway remembers of requests: the last ones, and what of their time was lost."""

import time

import pytest

from cluster.gateway.requests.history import History


def test_the_last_requests_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.gateway.requests.history.NUM_REQUESTS_REMEMBERED", 2)
    history = History()
    for number in range(3):
        history.add(f"r{number}", f"own-{number}")
    found = [history.find(f"r{number}") for number in range(3)]
    assert [asked and asked.own_id for asked in found] == [None, "own-1", "own-2"]


def test_of_several_with_one_id_the_last_is_found() -> None:
    history = History()
    history.add("same", "own-0")
    history.add("same", "own-1")
    history.begin_again("own-0")
    found = history.find("same")
    assert found is not None and (found.own_id, found.seconds_lost) == ("own-1", 0)


def test_all_are_found_by_the_id_that_engines_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the first of several with one id, until it is forgotten."""
    monkeypatch.setattr("cluster.gateway.requests.history.NUM_REQUESTS_REMEMBERED", 2)
    history = History()
    for own_id in ("own-0", "own-1"):
        history.add("same", own_id)
    found = history.find("own-0")
    assert found is not None and found.request_id == "same"
    history.add("other", "own-2")
    assert history.find("own-0") is None and history.find("same") is history.find("own-1")
    history.add("third", "own-3")
    assert history.find("same") is None


def test_what_came_before_the_last_attempt_is_lost() -> None:
    before = time.monotonic()
    history = History()
    history.add("r", "own-0")
    asked = history.find("r")
    assert asked is not None and asked.seconds_lost == 0
    history.begin_again("own-0")
    once = asked.seconds_lost
    history.begin_again("own-0")
    assert 0 <= once <= asked.seconds_lost <= time.monotonic() - before
