"""A node vanishes: its ranks start again on another one, or fewer of them where there is no room
for all.
"""

import gc
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from cluster.workers.executor import RayExecutor
from engine.errors import StepFailure, WorkerLost
from engine.worker.local_executor import LocalExecutor
from tests.cluster.workers.ranks import PROMPTS, ROOT, SECONDS, make_config
from tests.engine.worker.steps import generate

# Ray's own: `Cluster` leaves sockets open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

NODE = {"include_dashboard": False, "object_store_memory": 80 << 20}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without room for workers; nodes come and go."""
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    folder = Path(tempfile.mkdtemp(prefix="sq-", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    (folder / "ray").mkdir()  # where Cluster notes its address, which it takes to be there
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "temp_dir": str(folder), **NODE}, shutdown_at_exit=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        gc.collect()


def run(executor: RayExecutor, epoch: int) -> list[list[int]]:
    return generate(lambda request: executor.submit(request).result(SECONDS), PROMPTS, 6, epoch=epoch, chunk=20)


def lose(executor: RayExecutor, epoch: int) -> int:
    """Run steps until a worker is lost, then restart as the engine does; the epoch that this leads
    to.
    """
    with pytest.raises(StepFailure):
        while True:
            run(executor, epoch)
    for _ in range(10):  # a node's ranks may be seen to die one by one
        epoch += 1
        try:
            executor.restart()
        except WorkerLost:
            continue
        return epoch
    raise AssertionError("no restart succeeded")


def test_ranks_move_to_another_node_and_then_to_half_as_many(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.workers.executor.ELASTIC_SECONDS", SECONDS)
    alone = LocalExecutor(make_config())
    alone.start()
    expected = generate(lambda request: alone.submit(request).result(), PROMPTS, 6, chunk=20)
    alone.shutdown()
    first = cluster.add_node(num_cpus=2, **NODE)
    ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}, log_to_driver=False)
    executor = RayExecutor(make_config(tensor_parallel_size=4, num_spare_workers=0, elastic=True), cpus_per_worker=0.5)
    try:
        executor.start()
        assert run(executor, 0) == expected
        second = cluster.add_node(num_cpus=2, **NODE)
        cluster.remove_node(first, allow_graceful=False)
        epoch = lose(executor, 0)
        assert len(executor.worker_pids) == 4
        assert run(executor, epoch) == expected
        monkeypatch.setattr("cluster.workers.executor.ELASTIC_SECONDS", 5)
        cluster.add_node(num_cpus=1, **NODE)
        cluster.remove_node(second, allow_graceful=False)
        epoch = lose(executor, epoch)
        assert len(executor.worker_pids) == 2
        assert run(executor, epoch) == expected
    finally:
        executor.shutdown()
