"""Checks of the cache size that workers found, at the start and at each restart."""

from engine.admission.limits import Limits
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.executor import Capacity
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.sequence import Lane


def check_longest_sequence(capacity: Capacity, config: EngineConfig, max_model_len: int) -> None:
    """The longest sequence must not depend on available memory: raises InvalidConfig if the cache
    cannot hold it, instead of serving shorter ones.
    """
    num_tokens = (capacity.num_gpu_blocks - 1) * config.block_size
    if num_tokens < max_model_len:
        whose = "" if config.max_model_len is not None else " (the model's)"
        raise InvalidConfig(
            f"max_model_len={max_model_len}{whose} does not fit a cache of {capacity.num_gpu_blocks} "
            f"blocks; set max_model_len to {num_tokens} or less, or give the cache more memory"
        )


def request_limits(capacity: Capacity, config: EngineConfig, model: ModelConfig, max_model_len: int) -> Limits:
    return Limits(
        max_model_len,
        capacity.num_gpu_blocks - 1,
        config.block_size,
        config.max_num_seqs,
        model.vocab_size,
        model.eos_token_ids,
    )


def empty_blocks(capacity: Capacity, config: EngineConfig, max_model_len: int) -> BlockManager:
    return BlockManager(
        capacity, block_size=config.block_size, max_model_len=max_model_len, max_num_seqs=config.max_num_seqs
    )


def outgrown_message(lane: Lane, blocks: BlockManager) -> str:
    """The error of a lane that fitted when it arrived but cannot continue."""
    num_tokens = [seq.num_tokens for seq in lane.seqs]
    needed = sum(map(blocks.num_blocks, num_tokens))
    return (
        f"its {sum(num_tokens)} tokens so far need {needed} cache blocks, and there are "
        f"{blocks.device.num_usable} since workers were replaced"
    )
