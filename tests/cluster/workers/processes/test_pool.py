"""What becomes of a group of ranks that loses a process, of one that only seems to be lost, and of
idle processes.
"""

import os
import re
import select
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
import ray
from ray._private.ray_constants import KV_NAMESPACE_FUNCTION_TABLE
from ray.exceptions import RayActorError
from ray.experimental.internal_kv import _internal_kv_list

from cluster.launch.packages import ROOT
from cluster.launch.ray_cluster import ray_cluster
from cluster.workers.placement import give_back, place
from cluster.workers.processes import pool as pools
from cluster.workers.processes.local_process import LocalProcess
from cluster.workers.processes.pool import NoPlace, WorkerPool
from cluster.workers.processes.process import WorkerProcess
from cluster.workers.ray_executor import RayExecutor
from engine.errors import WorkerLost
from tests.cluster.workers.ranks import PROMPTS, SECONDS, is_alive, make_config, run, started
from tests.end_to_end.chaos.processes import SERVING, title_of
from tests.engine.worker.steps import Part, make_step

pytestmark = pytest.mark.usefixtures("cluster")

IS_TOLD = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)  # by Linux, how a process ended


def actor_classes() -> set[bytes]:
    """Ray's copies of actor classes, which it keeps until the job ends."""
    return set(_internal_kv_list(b"ActorClass", namespace=KV_NAMESPACE_FUNCTION_TABLE))


def spares(executor: RayExecutor) -> list[WorkerProcess]:
    """Once they are up."""
    assert executor._supply.restocking._timer is not None and executor._supply._pool is not None
    executor._supply.restocking._timer.join(SECONDS)
    for thread in executor._supply._pool._warming:
        thread.join(SECONDS)
    found = [spare for _, spare in executor._supply._pool._spares if not spare.is_lost]
    assert all(spare.is_attached for spare in found)
    return found


def test_killed_worker_is_lost_and_replaced(expected: list[list[int]], caplog: pytest.LogCaptureFixture) -> None:
    with started(make_config(pipeline_parallel_size=2, num_spare_workers=0)) as executor:
        old_pids, old_classes = executor.worker_pids, actor_classes()
        caplog.clear()
        os.kill(old_pids[0], signal.SIGSTOP)  # so that the step is in flight for as long as it takes to kill the worker
        future = executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])]))
        os.kill(old_pids[0], signal.SIGKILL)
        for failed in (future, executor.submit(make_step(1, [Part([1], 0, [1])]))):
            with pytest.raises(WorkerLost) as caught:
                failed.result(SECONDS)
            assert caught.value.rank == 0
            assert "its process ended" in caught.value.reason or "ActorDiedError" in caught.value.reason
        assert executor.was_killed(caught.value) == IS_TOLD
        (line,) = caplog.messages
        assert re.match(r"worker 0 on node \S+ lost, step 0 in flight: ", line)
        assert executor.restart().num_gpu_blocks == 32
        assert executor.worker_pids[1] == old_pids[1], "the other process is kept, with its weights"
        assert executor.worker_pids[0] != old_pids[0] and not is_alive(old_pids[0])
        with pytest.raises(WorkerLost, match="of epoch 0, and this is epoch 1"):
            executor.submit(make_step(2, [Part([1], 0, [1])])).result(SECONDS)
        assert run(executor, epoch=1) == expected
        assert actor_classes() == old_classes, "a worker more leaves nothing in Ray's store"


@pytest.mark.long
def test_a_spare_starts_a_while_after_the_others_and_takes_a_dead_ones_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.workers.restocking.STOCK_SECONDS", 0.5)
    with started(make_config(pipeline_parallel_size=2)) as executor:
        assert executor._supply._pool is not None and executor._supply._pool._spares == []
        (spare,) = spares(executor)
        assert spare.facts.pid not in executor.worker_pids
        titles = [title_of(pid) for pid in [spare.facts.pid, *executor.worker_pids]]
        assert [title.startswith(SERVING) for title in titles] == [False, True, True]
        os.kill(executor.worker_pids[1], signal.SIGKILL)
        with pytest.raises(WorkerLost):
            executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])])).result(SECONDS)
        executor.restart()
        assert executor.worker_pids[1] == spare.facts.pid


@pytest.mark.long
def test_a_lost_spare_is_replaced_while_steps_go_on(
    expected: list[list[int]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cluster.workers.restocking.STOCK_SECONDS", 0.1)
    monkeypatch.setattr("cluster.workers.restocking.RESTOCK_SECONDS", 0.1)
    with started(make_config()) as executor:
        (spare,), pids = spares(executor), executor.worker_pids
        for seconds in (0.2, 0.4):
            caplog.clear()
            stocking = executor._supply.restocking._timer
            os.kill(spare.facts.pid, signal.SIGKILL)
            assert spare.ended.wait(SECONDS)
            assert caplog.messages == ["a worker without a rank was lost: its process ended"]
            assert run(executor) == expected
            (spare,) = spares(executor)
            assert executor._supply.restocking._timer is not stocking
            assert executor._supply.restocking._seconds == seconds, "the next one is longer in coming"
        assert executor.worker_pids == pids
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerLost):
            executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])])).result(SECONDS)
        executor.restart()
        assert executor.worker_pids == [spare.facts.pid]
        assert executor._supply.restocking._seconds == 0.1


@pytest.mark.long
def test_a_worker_that_dies_before_its_line_is_laid_is_not_waited_for() -> None:
    placement = place(make_config())
    try:
        process = WorkerProcess(placement, 0)
        facts = ray.get(process.started.introduction, timeout=SECONDS)
        ended = os.pidfd_open(facts.pid)
        os.kill(facts.pid, signal.SIGKILL)
        assert select.select([ended], [], [], SECONDS)[0]
        os.close(ended)
        with pytest.raises(RayActorError):
            process.attach()
    finally:
        give_back(placement)


@pytest.mark.long
def test_a_worker_that_is_frozen_before_its_line_is_laid_is_replaced() -> None:
    placement = place(make_config(num_spare_workers=0))
    pool = WorkerPool(placement, 0, on_missing=lambda: None)
    try:
        frozen = pool._replace_lost(0)
        pid = ray.get(frozen.started.introduction, timeout=SECONDS).pid
        os.kill(pid, signal.SIGSTOP)
        ended = os.pidfd_open(pid)
        (process,) = pool.fill(SECONDS)
        assert process is not frozen and process.is_attached and not process.is_lost
        assert select.select([ended], [], [], SECONDS)[0], "it is still there"
        os.close(ended)
    finally:
        pool.close()
        give_back(placement)


@pytest.mark.long
def test_spares_that_are_lost_together_are_replaced_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.workers.restocking.STOCK_SECONDS", 0.1)
    with started(make_config(num_spare_workers=2)) as executor:
        monkeypatch.setattr(executor._supply.restocking, "_seconds", 2.0)
        monkeypatch.setattr("cluster.workers.restocking.RESTOCK_SECONDS", 2.0)
        old = spares(executor)
        for spare in old:
            os.kill(spare.facts.pid, signal.SIGKILL)
        assert all(spare.ended.wait(SECONDS) for spare in old)
        assert executor._supply.restocking._seconds == 4.0, "one delay for both"
        assert len(spares(executor)) == 2
        executor._supply.restocking._lost_at -= 301
        executor._supply.restocking.after_loss()
        assert executor._supply.restocking._seconds == 4.0, "that was long ago"


@pytest.mark.parametrize(
    "is_elsewhere",
    [pytest.param(False, id="here"), pytest.param(True, id="on another machine", marks=pytest.mark.long)],
)
def test_a_frozen_worker_is_found_and_replaced(
    expected: list[list[int]], monkeypatch: pytest.MonkeyPatch, is_elsewhere: bool
) -> None:
    """On another machine it is seen by a neighbour: by its silence alone it would be lost after 10
    s.
    """
    if is_elsewhere:
        monkeypatch.setattr(LocalProcess, "find", lambda pid, start_time: None)
    with started(make_config(pipeline_parallel_size=2, num_spare_workers=0)) as executor:
        frozen, other = executor.worker_pids
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match=r"worker 0 lost: stopped by a signal, no sign of life for \d\.\d s"):
            executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])])).result(SECONDS)
        executor.restart()
        assert not is_alive(frozen) and executor.worker_pids[1] == other
        assert run(executor, epoch=1) == expected


@pytest.mark.long
def test_a_frozen_worker_alone_on_another_machine_is_seen_by_a_lookout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalProcess, "find", lambda pid, start_time: None)
    monkeypatch.setattr("cluster.workers.restocking.STOCK_SECONDS", 0.1)
    with started(make_config(num_spare_workers=0)) as executor:
        assert executor._supply.restocking._timer is not None and executor._supply._pool is not None
        executor._supply.restocking._timer.join(SECONDS)
        (lookout,) = executor._supply._pool._lookouts.values()
        for thread in executor._supply._pool._warming:
            thread.join(SECONDS)
        assert lookout.is_attached and lookout.facts.pid not in executor.worker_pids
        ended = os.pidfd_open(lookout.facts.pid)
        (frozen,) = executor.worker_pids
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match=r"worker 0 lost: stopped by a signal, no sign of life for \d\.\d s"):
            executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])])).result(SECONDS)
        executor.restart()
        assert not is_alive(frozen) and list(executor._supply._pool._lookouts.values()) == [lookout]
    assert select.select([ended], [], [], SECONDS)[0], "it is still there"
    os.close(ended)


def test_a_starved_worker_and_a_short_pause_are_no_alarm(expected: list[list[int]]) -> None:
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with started(make_config(pipeline_parallel_size=2, num_spare_workers=0)) as executor:
            starved, paused = executor.worker_pids
            os.setpriority(os.PRIO_PROCESS, starved, 19)
            os.kill(paused, signal.SIGSTOP)
            resume = threading.Timer(1.5, os.kill, (paused, signal.SIGCONT))
            resume.start()
            assert run(executor) == expected
            resume.join()
            assert executor.worker_pids == [starved, paused]
    finally:
        burner.kill()
        burner.wait()


class KilledAtOnce(WorkerProcess):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        ray.kill(self.actor)


def test_workers_that_ray_fails_at_once_are_not_started_over_and_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    placement = place(make_config())
    pool = WorkerPool(placement, 0, on_missing=lambda: None)
    monkeypatch.setattr("cluster.workers.processes.pool.START_SECONDS", 3.0)
    monkeypatch.setattr("cluster.workers.processes.pool.WorkerProcess", KilledAtOnce)
    with pytest.raises(NoPlace):
        pool.fill(3.0)
    pool.close()
    give_back(placement)
    assert 1 <= sum("died while it started" in line for line in caplog.messages) <= 6, "after 0.1, 0.2, 0.4, ... s"


def test_workers_that_ray_ends_for_lack_of_memory_are_started_again() -> None:
    """Whatever it calls that: of actors that died it has many errors."""
    code = f"from {__name__} import fill_without_memory; fill_without_memory()"
    environment = os.environ | {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("worker 0 died while it started: OutOfMemoryError", done.stderr)


def fill_without_memory() -> None:
    pools.START_SECONDS = 3.0
    with ray_cluster():
        placement = place(make_config())
        pool = WorkerPool(placement, 0, on_missing=lambda: None)
        with pytest.raises(NoPlace):
            pool.fill(3.0)
        pool.close()
        give_back(placement)
