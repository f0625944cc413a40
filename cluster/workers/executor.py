"""The executor that a configuration asks for."""

from cluster.memory import available_memory
from cluster.workers.nodes_memory import check_nodes
from cluster.workers.placement import has_gpus
from cluster.workers.ray_executor import RayExecutor
from engine.config import EngineConfig
from engine.executor import Executor
from engine.worker.local_executor import LocalExecutor


def make_executor(config: EngineConfig) -> Executor:
    """Of one rank in this process, or of Ray actors. Raises InvalidConfig where one rank in this
    process has not enough memory.
    """
    if not config.runs_in_process:
        return RayExecutor(config)
    if not has_gpus(config):
        check_nodes(config, ["of this process"], [available_memory()])
    return LocalExecutor(config)
