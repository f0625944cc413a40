"""Errors say what happened where, and cross processes."""

import asyncio
import logging
import pickle

import pytest

from engine.errors import StepRaised, WorkerLost, going_on, in_a_line, without_secret


def test_a_failed_step_names_the_rank() -> None:
    assert str(WorkerLost(3, "silent for 2.7 s")) == "worker 3 lost: silent for 2.7 s"
    assert str(StepRaised(1, "ValueError: no", 7)) == "step 7 raised on worker 1: ValueError: no"


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("first\nsecond"), "ValueError: first"), (KeyError(), "KeyError: "), (OSError(" x "), "OSError: x")],
)
def test_an_error_in_a_line(error: Exception, line: str) -> None:
    assert in_a_line(error) == line
    assert in_a_line(pickle.loads(pickle.dumps(error))) == line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("s3://key:secret@bucket/folder?region=eu", "s3://key:…@bucket/folder?region=eu"),
        ("'s3://key:sec/ret@bucket' is none: 's3://key:sec/ret@a'", "'s3://key:…@bucket' is none: 's3://key:…@a'"),
        ("no route to http://127.0.0.1:8000/v1/models/a@b", "no route to http://127.0.0.1:8000/v1/models/a@b"),
        ("s3://bucket/with:colon/and@sign", "s3://bucket/with:colon/and@sign"),
        ("/a/path:of@this machine", "/a/path:of@this machine"),
    ],
)
def test_a_uris_secret_is_not_told(text: str, told: str) -> None:
    assert without_secret(text) == told
    assert in_a_line(ValueError(text)) == f"ValueError: {told}"


def test_a_failure_in_a_loops_turn_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with going_on(logging.getLogger("squadron"), "looking"):
            raise RuntimeError("unforeseen")
    assert caplog.messages == ["looking failed; going on"] * 2
    assert "RuntimeError: unforeseen" in caplog.text


def test_what_ends_a_task_ends_it_in_a_loop_too() -> None:
    with pytest.raises(asyncio.CancelledError), going_on(logging.getLogger("squadron"), "looking"):
        raise asyncio.CancelledError
