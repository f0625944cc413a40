"""Two stages of a model of the hub, on two nodes: each node fetches only what its own stage reads,
and nothing else of what is computed shows it.
"""

import os
import signal
from pathlib import Path

import pytest

from cluster.download.models import outlined
from cluster.workers.ray_executor import RayExecutor
from engine.errors import StepFailure
from engine.worker.local_executor import LocalExecutor
from tests.cluster.download.conftest import NAME
from tests.cluster.download.hub_server import Repo, SmallHub, small_hub
from tests.cluster.download.parts import ALL, OF_STAGE, save_in_parts
from tests.cluster.several_nodes import several_nodes
from tests.cluster.workers.ranks import make_config, run

# Ray's own: `Cluster` leaves sockets open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def sent(hub: SmallHub) -> dict[str, int]:
    return {name: size for name, size in hub.sent.items() if name in ALL}


def test_each_node_fetches_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = save_in_parts(tmp_path / "published")
    alone = LocalExecutor(make_config(model=str(tmp_path / "published")))
    of_folder = alone.start()
    expected = run(alone)
    alone.shutdown()
    built = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "squadron"
    for name in ("first", "second"):
        (tmp_path / name / "squadron").mkdir(parents=True)
        for kernels in built.glob("kernels-*.so"):  # so that nodes do not build them
            (tmp_path / name / "squadron" / kernels.name).symlink_to(kernels)
    # Each has room for one stage, and caches of its own.
    nodes = [
        {"num_cpus": 1, "env_vars": {"HF_HOME": str(tmp_path / name), "XDG_CACHE_HOME": str(tmp_path / name)}}
        for name in ("first", "second")
    ]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "driver"))
    with small_hub() as hub, several_nodes([{"num_cpus": 0}, *nodes], HF_ENDPOINT=hub.url):
        hub.repos[NAME] = Repo()
        hub.repos[NAME].push(contents)
        config = outlined(make_config(model=NAME, pipeline_parallel_size=2, num_spare_workers=0))
        hub.sent.clear()  # headers, for the plan
        executor = RayExecutor(config, cpus_per_worker=0.6)
        try:
            capacity = executor.start()
            assert len(set(executor.worker_nodes)) == 2
            assert run(executor) == expected
            assert capacity.arithmetic == of_folder.arithmetic, "and so is the fingerprint"
            of_two = {name: sum(name in files for files in OF_STAGE.values()) * len(contents[name]) for name in ALL}
            assert sent(hub) == of_two
            os.kill(executor.worker_pids[1], signal.SIGKILL)
            with pytest.raises(StepFailure):
                while True:
                    run(executor)
            assert executor.restart().arithmetic == of_folder.arithmetic
            assert run(executor, epoch=1) == expected
            assert sent(hub) == of_two, "what took the lost one's place found it there"
        finally:
            executor.shutdown()
        hub.sent.clear()
        whole = config.model_copy(update={"pipeline_parallel_size": 1, "tensor_parallel_size": 2})
        executor = RayExecutor(whole, cpus_per_worker=0.4)
        try:
            assert executor.start().arithmetic == of_folder.arithmetic
            assert run(executor) == expected
        finally:
            executor.shutdown()
        lacking = [{name: len(contents[name]) for name in ALL - files} for files in OF_STAGE.values()]
        assert sent(hub) in lacking, "the rest, on one of the nodes"
