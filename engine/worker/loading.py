"""A rank's start: it finds its device, meets the other ranks, reads its shard of the weights; later
it may be given others.
"""

import torch

import ops
from engine.checkpoint.model_config import ModelConfig, resolve_max_model_len
from engine.config import EngineConfig
from engine.executor import Weights
from engine.worker.device.cores import Cores
from engine.worker.device.pick import pick_device
from engine.worker.drafting.loading import load_draft, read_draft
from engine.worker.model import make_model
from engine.worker.ranks import Store, make_ranks
from engine.worker.shard import Shard
from engine.worker.weights.reading import load_weights, sample_weights


def load(
    config: EngineConfig, rank: int, store: Store | None, host: str, num_ranks_here: int, weights: Weights | None = None
) -> Shard:
    """Returns when all ranks have met at `store` and this one has its weights. Raises
    InvalidConfig.
    """
    device = pick_device(config.device)
    config = config.model_copy(update={"device": device.torch_device.type})  # what "auto" has turned out to be
    cores = Cores(num_ranks_here, config.num_threads, binds=device.torch_device.type == "cpu")
    torch.set_num_threads(cores.num_threads)
    model_config = ModelConfig.load(config.model)
    max_model_len = resolve_max_model_len(config, model_config)
    sizes = config.tensor_parallel_size, config.pipeline_parallel_size
    ranks = make_ranks(*sizes, rank, device.torch_device)
    ranks.join(store, host)
    model = make_model(config, model_config, ranks, device.torch_device)
    load_weights(model, config, ranks, weights)
    draft = load_draft(config, model, max_model_len) if ranks.speaks else None
    cores.spread(ops.thread_ids(model.ops, cores.num_threads))
    return Shard(config, max_model_len, device, cores, ranks, model, sample_weights(config, weights), draft)


def reload(shard: Shard, weights: Weights | None, *, has_draft: bool) -> Shard:
    """The shard with those weights in place of what it had, also after a `reload` that failed.
    `has_draft`: its draft model still has its weights. Raises InvalidConfig.
    """
    load_weights(shard.model, shard.config, shard.ranks, weights)
    if shard.draft is not None and shard.config.draft is not None and not has_draft:
        read_draft(shard.draft, shard.config.draft, shard.model, shard.max_model_len)
    return shard.with_sample(sample_weights(shard.config, weights))
