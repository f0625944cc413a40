"""From what each rank has room for to what the engine may use. Needs no torch: the driver of a cluster has none."""

from collections.abc import Sequence

from engine.config import EngineConfig, ModelConfig, resolve_max_model_len
from engine.errors import InvalidConfig
from engine.executor import Capacity


def smallest(num_blocks: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Device and host blocks that every rank has room for: they all keep the same ones."""
    device, host = zip(*num_blocks, strict=True)
    return min(device), min(host)


def make_capacity(
    config: EngineConfig, num_gpu_blocks: int, num_cpu_blocks: int, swap_seconds_per_block: float
) -> Capacity:
    """Raises InvalidConfig if the cache cannot hold one sequence of the max_model_len that was asked for."""
    max_model_len = resolve_max_model_len(config, ModelConfig.load(config.model))
    num_tokens = (num_gpu_blocks - 1) * config.block_size
    if config.max_model_len is not None and num_tokens < max_model_len:
        raise InvalidConfig(
            f"max_model_len={max_model_len} does not fit a cache of {num_gpu_blocks} blocks; "
            f"use {num_tokens} or less, or give the cache more memory"
        )
    return Capacity(num_gpu_blocks, num_cpu_blocks, min(max_model_len, num_tokens), swap_seconds_per_block)
