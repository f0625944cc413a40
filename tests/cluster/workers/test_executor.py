"""Which executor a configuration gets, and what it needs for that."""

import pytest

from cluster.workers.executor import make_executor
from cluster.workers.ray_executor import RayExecutor
from engine.errors import InvalidConfig
from engine.worker.local_executor import LocalExecutor
from tests.cluster.workers.ranks import make_config


def test_one_rank_computes_in_this_process_and_more_on_ray() -> None:
    assert isinstance(make_executor(make_config()), LocalExecutor)
    for more in ({"tensor_parallel_size": 2}, {"distributed_executor_backend": "ray"}):
        assert isinstance(make_executor(make_config(**more)), RayExecutor)


def test_ray_must_be_there_before_the_workers() -> None:
    with pytest.raises(InvalidConfig, match=r"connected to no Ray cluster; call ray\.init first"):
        make_executor(make_config(tensor_parallel_size=2)).start()


def test_a_rank_that_does_not_fit_is_not_loaded_in_this_process() -> None:
    config = make_config(num_gpu_blocks_override=None, kv_cache_memory_bytes="900GiB")
    with pytest.raises(InvalidConfig, match=r"1 rank\(s\) .* 900 GiB of cache each"):
        make_executor(config)
