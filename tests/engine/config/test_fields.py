"""What follows from a field, or from two."""

import pytest

from engine.config import EngineConfig
from tests.engine.support.workloads import DEMO


@pytest.mark.parametrize(
    ("backend", "tensor_parallel_size", "expected"),
    [("auto", 1, True), ("auto", 2, False), ("local", 1, True), ("ray", 1, False)],
)
def test_one_rank_runs_in_process_unless_ray_is_asked_for(
    backend: str, tensor_parallel_size: int, expected: bool
) -> None:
    config = EngineConfig.create(
        model="x", distributed_executor_backend=backend, tensor_parallel_size=tensor_parallel_size
    )
    assert config.runs_in_process is expected


def test_host_memory_is_that_of_each_rank_or_a_share_of_all() -> None:
    assert EngineConfig.create(model=DEMO, swap_space=0.5, tensor_parallel_size=4).host_cache_bytes == 1 << 29
    assert EngineConfig.create(model=DEMO, kv_offloading_size=2, tensor_parallel_size=4).host_cache_bytes == 1 << 29
