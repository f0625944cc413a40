"""Steps and their late masks, whichever comes first."""

import contextlib
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from cluster.sockets.connection import ChannelError, Connection, ConnectionEnded
from cluster.workers.steps.inbox import Inbox
from cluster.workers.steps.messages import Message, StepDone, encode
from engine.step import StepMasks
from tests.engine.worker.steps import decode_step


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Inbox]]:
    """The driver's connection, and a worker's inbox."""
    ours, theirs = socket.socketpair()
    driver, worker = Connection(ours), Connection(theirs)
    with contextlib.closing(driver), contextlib.closing(worker):
        yield driver, Inbox(worker)


def masks(step: int) -> StepMasks:
    return StepMasks(0, step, np.array([0, 1], np.int32), np.array([step], np.int32))


def post(driver: Connection, *messages: Message) -> None:
    for message in messages:
        driver.send(encode(message))


def test_masks_are_found_behind_later_steps(ends: tuple[Connection, Inbox]) -> None:
    driver, inbox = ends
    post(driver, decode_step(4, 1), decode_step(5, 1), masks(4), decode_step(6, 1), masks(5))
    first = inbox.next_step()
    assert inbox.masks_of(first).mask_words.tolist() == [4]
    second = inbox.next_step()
    assert inbox.masks_of(second).mask_words.tolist() == [5]
    assert [first.step, second.step, inbox.next_step().step] == [4, 5, 6]


def test_masks_that_nobody_waited_for_are_dropped(ends: tuple[Connection, Inbox]) -> None:
    driver, inbox = ends
    post(driver, decode_step(4, 1), masks(4), decode_step(5, 1), masks(5))
    assert [inbox.next_step().step, inbox.next_step().step] == [4, 5]
    assert inbox.masks_of(decode_step(5, 1)).mask_words.tolist() == [5]


def test_the_end_of_the_connection_ends_a_wait(ends: tuple[Connection, Inbox]) -> None:
    driver, inbox = ends
    post(driver, decode_step(4, 1))
    request = inbox.next_step()
    driver.end()
    with pytest.raises(ConnectionEnded):
        inbox.masks_of(request)
    with pytest.raises(ConnectionEnded):
        inbox.next_step()


def test_a_driver_sends_nothing_else(ends: tuple[Connection, Inbox]) -> None:
    driver, inbox = ends
    post(driver, StepDone(0, 4, 1))
    with pytest.raises(ChannelError, match="the driver sent StepDone"):
        inbox.next_step()
