"""What fails in a turn of a loop is logged, and the loop goes on; its end still ends it."""

import asyncio
import logging

import pytest

from cluster.going_on import going_on

logger = logging.getLogger("squadron.gateway")


def test_a_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with going_on(logger, "looking"):
            raise RuntimeError("unforeseen")
    assert caplog.messages == ["looking failed; going on"] * 2
    assert "RuntimeError: unforeseen" in caplog.text


def test_what_ends_a_task_ends_it() -> None:
    with pytest.raises(asyncio.CancelledError), going_on(logger, "looking"):
        raise asyncio.CancelledError
