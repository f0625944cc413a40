"""That the death of a process of Ray's is noticed, and that nothing of its cluster is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.launch.packages import ROOT
from cluster.launch.ray_cluster import ray_cluster
from engine.errors import ClusterLost
from tests.end_to_end.chaos.processes import descendants, is_alive, send, title_of


@pytest.mark.parametrize(("program", "name"), [("raylet", "raylet"), ("gcs_server", "GCS")])
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
        (victim,) = [pid for pid in processes if Path(title_of(pid).partition(" ")[0]).name == program]
        send(victim, signal.SIGKILL)
        cluster.wait()
    assert str(lost.value) == f"Ray's {name} (process {victim}) has died"
    assert [title_of(pid) for pid in processes if is_alive(pid)] == []
    assert not folder.exists()
