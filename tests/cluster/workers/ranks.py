"""Groups of ranks on Ray, and what is run on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.workers.ray_executor import RayExecutor
from engine.config import EngineConfig
from engine.executor import Executor
from tests.engine.worker.steps import generate

ROOT = Path(__file__).parents[3]
PROMPTS = [list(range(40, 77)), [5, 6, 7], list(range(300, 316))]
SECONDS = 120  # more than any step takes


def make_config(**changes: object) -> EngineConfig:
    arguments = {
        "model": str(ROOT / "configs" / "demo"),
        "device": "cpu",
        "dtype": "float32",
        "ops_backend": "reference",
        "num_gpu_blocks_override": 32,
        "swap_space": 0.01,
        "num_threads": 1,
    }
    return EngineConfig.create(**(arguments | changes))


@contextmanager
def started(config: EngineConfig) -> Iterator[RayExecutor]:
    executor = RayExecutor(config)
    try:
        executor.start()
        yield executor
    finally:
        executor.shutdown()


def run(executor: Executor, epoch: int = 0) -> list[list[int]]:
    return generate(lambda request: executor.submit(request).result(SECONDS), PROMPTS, 6, epoch=epoch, chunk=20)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
