"""That the death of a process of Ray's is noticed, and that nothing of its cluster is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray._private import services

from cluster.launch.node.ray_processes import RayProcesses, dead_raylets
from cluster.launch.packages import ROOT
from cluster.launch.ray_cluster import ray_cluster
from engine.errors import ClusterLost
from tests.cluster.sockets.descriptors import beyond_select
from tests.end_to_end.chaos.processes import descendants, is_alive, send, short_title, title_of


@pytest.mark.parametrize(
    ("program", "name"), [("raylet", "raylet"), pytest.param("gcs_server", "GCS", marks=pytest.mark.long)]
)
def test_a_lost_cluster_is_told_and_leaves_nothing(program: str, name: str) -> None:
    """In a process of its own: what Ray's library in it has lost, it does not forget in the next
    cluster.
    """
    code = f"from {__name__} import lose; lose({program!r}, {name!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def lose(program: str, name: str) -> None:
    before = set(descendants(os.getpid()))
    with pytest.raises(ClusterLost) as lost, ray_cluster() as cluster:
        processes = set(descendants(os.getpid())) - before
        folder = Path(cluster.environment["RAY_AUTH_TOKEN_PATH"]).parent
        (victim,) = [pid for pid in processes if program_of(pid) == program]
        send(victim, signal.SIGKILL)
        cluster.wait()
    assert str(lost.value) == f"Ray's {name} (process {victim}) has died"
    assert [title_of(pid) for pid in processes if is_alive(pid)] == []
    assert not folder.exists()


def test_a_process_with_many_open_files_sees_it() -> None:
    """With those of whoever has started it, say."""
    processes = RayProcesses()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as raylet, beyond_select():
        processes._vital = {os.pidfd_open(raylet.pid): ("raylet", raylet.pid)}
        raylet.kill()
        try:
            lost = processes.wait_for_loss()
        finally:
            processes.shutdown()
    assert str(lost) == f"Ray's raylet (process {raylet.pid}) has died"


def test_other_programs_may_have_any_name() -> None:
    """Linux cuts it after 15 bytes, in the middle of a letter."""
    program = f"open('/proc/self/comm', 'wb').write({'программа'.encode()[:15]!r}); print(flush=True); input()"
    command = [sys.executable, "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        with RayProcesses().starting():
            pass
        assert dead_raylets() == set()
        other.kill()


@pytest.mark.long
def test_a_raylet_that_dies_while_it_starts_is_started_again() -> None:
    """As it does on a machine so busy that its agents do not come in time."""
    code = f"from {__name__} import start_again; start_again()"
    environment = os.environ | {"RAY_raylet_start_wait_time_s": "2"}  # of Ray's library, in one look
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def start_again() -> None:
    look, victims = services.get_node, []

    def kill_the_first(*where: object) -> object:
        if not victims:
            victims.append(raylet())
            send(victims[0], signal.SIGKILL)
        return look(*where)

    services.get_node = kill_the_first
    with ray_cluster():
        assert raylet() != victims[0]
        assert ray.get(ray.put("kept")) == "kept"
        processes = descendants(os.getpid())
    assert [title_of(pid) for pid in processes if is_alive(pid)] == []


def test_nothing_starts_that_nobody_has_asked_for() -> None:
    code = f"from {__name__} import start_idle; start_idle()"
    environment = os.environ | {"RAY_worker_maximum_startup_concurrency": "4"}  # as on four cores
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def start_idle() -> None:
    with ray_cluster(num_workers=4):
        titles = {short_title(title_of(pid)) for pid in descendants(os.getpid())}
        assert "raylet" in titles and not titles & {"ray::IDLE", "default_worker.py", "setup_worker.py"}
        assert not titles & {"monitor.py", "dashboard.py"}


def raylet() -> int:
    (pid,) = [pid for pid in descendants(os.getpid()) if is_alive(pid) and program_of(pid) == "raylet"]
    return pid


def program_of(pid: int) -> str:
    return Path(title_of(pid).partition(" ")[0]).name
