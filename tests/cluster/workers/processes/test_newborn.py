"""Processes that are stopped before they have said a word: nobody has their line."""

import os
import select
import signal
import threading
import time

import pytest
from ray._private.state import actors

from cluster.workers.placement import give_back, place
from cluster.workers.processes.pool import WorkerPool
from cluster.workers.processes.process import WorkerProcess
from tests.cluster.workers.ranks import SECONDS, make_config

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cluster.workers.processes.started.DOUBT_SECONDS", 0.5)
    placement = place(make_config())
    pool = WorkerPool(placement, 0, on_missing=lambda: None)
    yield pool
    pool.close()
    give_back(placement)


def freeze(process: WorkerProcess) -> int:
    """Stop the process as soon as there is one, which then imports torch; a handle of it."""
    deadline = time.monotonic() + SECONDS
    while not (pid := actors(process.actor._actor_id.hex()).get("Pid")):
        assert time.monotonic() < deadline
    handle = os.pidfd_open(pid)
    signal.pidfd_send_signal(handle, signal.SIGSTOP)
    assert actors(process.actor._actor_id.hex())["State"] == "PENDING_CREATION"
    return handle


@pytest.mark.parametrize(
    "is_elsewhere", [pytest.param(False, id="here", marks=pytest.mark.long), pytest.param(True, id="on another node")]
)
def test_a_worker_that_is_frozen_before_its_first_word_is_replaced(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, is_elsewhere: bool
) -> None:
    if is_elsewhere:
        monkeypatch.setattr("cluster.workers.processes.newborn._own_node", lambda: "another")
    frozen = pool._replace_lost(0)
    ended = freeze(frozen)
    (process,) = pool.fill(SECONDS)
    assert process is not frozen and process.is_attached and not process.is_lost
    assert select.select([ended], [], [], SECONDS)[0], "it is still there"
    os.close(ended)


@pytest.mark.long
def test_a_spare_that_is_frozen_before_its_first_word_is_lost(pool: WorkerPool) -> None:
    spare, lost = WorkerProcess(pool._placement, 0, "spare"), threading.Event()
    ended = freeze(spare)
    pool._start_warming(spare)
    spare.on_loss = lambda reason: lost.set()
    assert lost.wait(SECONDS) and spare.is_lost
    assert select.select([ended], [], [], SECONDS)[0], "it is still there"
    os.close(ended)


def test_a_worker_that_is_slow_to_start_is_left_alone(pool: WorkerPool) -> None:
    slow = pool._replace_lost(0)
    handle = freeze(slow)
    resume = threading.Timer(1.5, signal.pidfd_send_signal, (handle, signal.SIGCONT))
    resume.start()
    assert pool.fill(SECONDS) == [slow]
    resume.join()
    os.close(handle)
