"""The executor that a configuration asks for."""

from cluster.download.models import fetched, outlined
from cluster.download.node_lock import Tell
from cluster.memory import available_memory
from cluster.workers.nodes_memory import check_nodes
from cluster.workers.placement import has_gpus
from cluster.workers.ray_executor import RayExecutor
from engine.config import EngineConfig
from engine.executor import Executor, Weights
from engine.worker.local_executor import LocalExecutor


def with_model_here(config: EngineConfig, tell: Tell) -> EngineConfig:
    """Of a model by its name, with what this process reads of it on this node: all of it if the
    rank is of this process. Workers fetch theirs. Raises InvalidConfig.
    """
    return fetched(config, tell) if config.runs_in_process else outlined(config, tell)


def make_executor(config: EngineConfig, weights: Weights | None = None) -> Executor:
    """Of one rank in this process, or of Ray actors; `weights`: None: those that are configured.
    Raises InvalidConfig where one rank in this process has not enough memory.
    """
    if not config.runs_in_process:
        return RayExecutor(config, weights)
    if not has_gpus(config):
        check_nodes(config, ["of this process"], [available_memory()])
    return LocalExecutor(config, weights)
