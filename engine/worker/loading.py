"""A rank's start: it finds its device, meets the other ranks, reads its shard of the weights."""

import torch

from engine.checkpoint.model_config import ModelConfig, resolve_max_model_len
from engine.config import EngineConfig
from engine.worker.device.cores import Cores
from engine.worker.device.pick import pick_device
from engine.worker.model import load_model
from engine.worker.ranks import Ranks
from engine.worker.shard import Shard
from parallel.groups.meeting import Store
from parallel.groups.mesh import Mesh


def load(config: EngineConfig, rank: int, store: Store | None, host: str, num_ranks_here: int) -> Shard:
    """Returns when all ranks have met at `store` and this one has its weights. Raises
    InvalidConfig.
    """
    device = pick_device(config.device)
    cores = Cores(num_ranks_here, config.num_threads, binds=device.torch_device.type == "cpu")
    torch.set_num_threads(cores.num_threads)
    model_config = ModelConfig.load(config.model)
    max_model_len = resolve_max_model_len(config, model_config)
    mesh = Mesh(config.tensor_parallel_size, config.pipeline_parallel_size)
    ranks = Ranks(mesh, rank, device.torch_device)
    ranks.join(store, host)
    model = load_model(config, model_config, ranks, device.torch_device)
    return Shard(config, max_model_len, device, cores, ranks, model)
