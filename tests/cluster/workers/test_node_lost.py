"""A node vanishes: its ranks start again on another one, or fewer of them where there is no room
for all.
"""

import contextlib
import gc
import os
import select
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from cluster.launch.node.ending import end_connection
from cluster.launch.node.ray_processes import RayProcesses
from cluster.launch.node.start.agents import agents_may_be_late
from cluster.launch.node.start.starting import patience
from cluster.workers.ray_executor import RayExecutor
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.errors import CACHE_TOO_SMALL, StepFailure, WorkerLost
from engine.outputs import Accumulator, RequestOutput
from engine.sampling_params import SamplingParams
from engine.worker.local_executor import LocalExecutor
from tests.cluster.open_ray import open_ray
from tests.cluster.workers.ranks import PROMPTS, ROOT, SECONDS, make_config
from tests.end_to_end.chaos.processes import find
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import TOKENIZER
from tests.engine.worker.steps import generate

# Ray's own: `Cluster` leaves sockets open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

NODE = {"include_dashboard": False, "object_store_memory": 80 << 20}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without room for workers; nodes come and go."""
    folder = Path(tempfile.mkdtemp(prefix="sq-", dir="/tmp"))
    open_ray(monkeypatch, RAY_TMPDIR=str(folder))
    (folder / "ray").mkdir()  # where Cluster notes its address, which it takes to be there
    processes = RayProcesses()
    with contextlib.ExitStack() as stack:
        stack.callback(gc.collect)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(processes.shutdown)  # and what a head had started that did not come up
        with processes.starting(), patience(), agents_may_be_late():
            head = {"num_cpus": 0, "temp_dir": str(folder), **NODE}
            cluster = Cluster(True, head_node_args=head, shutdown_at_exit=False)
        stack.callback(cluster.shutdown)
        stack.callback(end_connection)
        yield cluster


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
    monkeypatch.setattr("cluster.workers.supply.ELASTIC_SECONDS", SECONDS)
    alone = LocalExecutor(make_config())
    alone.start()
    expected = generate(lambda request: alone.submit(request).result(), PROMPTS, 6, chunk=20)
    alone.shutdown()
    first = cluster.add_node(num_cpus=2, **NODE)
    ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}, log_to_driver=False)
    executor = RayExecutor(make_config(tensor_parallel_size=2, num_spare_workers=0, elastic=True), cpus_per_worker=1)
    try:
        executor.start()
        assert run(executor, 0) == expected
        second = cluster.add_node(num_cpus=2, **NODE)
        cluster.remove_node(first, allow_graceful=False)
        epoch = lose(executor, 0)
        assert len(executor.worker_pids) == 2
        assert run(executor, epoch) == expected
        monkeypatch.setattr("cluster.workers.supply.ELASTIC_SECONDS", 5)
        cluster.add_node(num_cpus=1, **NODE)
        cluster.remove_node(second, allow_graceful=False)
        epoch = lose(executor, epoch)
        assert len(executor.worker_pids) == 1
        assert run(executor, epoch) == expected
    finally:
        executor.shutdown()


@pytest.mark.long
def test_with_half_the_ranks_and_half_the_cache_who_still_fits_goes_on(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same tokens; a request that needs more than the whole cache ends when it does."""
    monkeypatch.setattr("cluster.workers.supply.ELASTIC_SECONDS", 2)
    given = {"max_model_len": 36 * 16, "num_spare_workers": 0, "elastic": True}
    requests: dict[str, tuple[list[int], SamplingParams]] = {
        f"short {n}": ([30 + n] * 40, SamplingParams(max_tokens=40, seed=n, ignore_eos=True)) for n in range(3)
    }
    requests["long"] = ([*range(20, 320)], SamplingParams(max_tokens=60, seed=9, ignore_eos=True))
    memory = {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 64 << 20}
    alone = started_engine(make_config(**memory, **given), LocalExecutor)
    expected = finish(alone, requests)
    alone.executor.shutdown()
    memory["kv_cache_memory_bytes"] = 20 * ((64 << 20) // alone.scheduler.blocks.device.num_blocks)
    first = cluster.add_node(num_cpus=2, **NODE)
    ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}, log_to_driver=False)
    config = make_config(tensor_parallel_size=2, **memory, **given)
    engine = started_engine(config, lambda config: RayExecutor(config, cpus_per_worker=1))
    try:
        assert engine.scheduler.blocks.device.num_blocks == 40
        ranks = [os.pidfd_open(pid) for pid in find("ray::WorkerActor")]
        cluster.add_node(num_cpus=1, **NODE)

        def lose_the_first_node() -> None:
            cluster.remove_node(first, allow_graceful=False)
            for rank in ranks:  # they live on for a moment, in which the answers might be complete
                assert select.select([rank], [], [], SECONDS)[0]
                os.close(rank)

        answers = finish(engine, requests, disturb=lose_the_first_node)
        assert engine.scheduler.blocks.device.num_blocks == 20
        long = answers.pop("long")
        assert (long.error_code, long.outputs[0].finish_reason) == (CACHE_TOO_SMALL, "error")
        assert {name: answer.outputs for name, answer in answers.items()} == {
            name: expected[name].outputs for name in answers
        }
    finally:
        engine.executor.shutdown()


def started_engine(config: EngineConfig, make: Callable[[EngineConfig], Any]) -> LLMEngine:
    engine = LLMEngine(Parts(config, ModelConfig.load(config.model), TOKENIZER, make(config)))
    engine.start()
    return engine


def finish(
    engine: LLMEngine,
    requests: dict[str, tuple[list[int], SamplingParams]],
    disturb: Callable[[], object] = lambda: None,
) -> dict[str, RequestOutput]:
    """The answers; `disturb` is called when all have begun."""
    joined = {name: Accumulator() for name in requests}
    for name, request in requests.items():
        add_request(engine, name, *request)
    waiting: set[str] | None = set(requests)
    while engine.has_unfinished_requests():
        for output in engine.step():
            joined[output.request_id].add(output)
            if waiting:
                waiting.discard(output.request_id)
        if waiting is not None and not waiting:
            waiting = None
            disturb()
    return {name: total.last for name, total in joined.items() if total.last is not None}
