"""The cache size that workers found, at the start and at each restart, and what follows from it."""

from engine.admission.cache_keeping import CacheKeeping
from engine.admission.limits import Limits
from engine.checkpoint.model_config import ModelConfig, resolve_max_model_len
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.executor import Capacity
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.sequence import Lane


class CacheSize:
    """The longest sequence, `max_model_len` tokens, does not depend on it."""

    def __init__(self, config: EngineConfig, model: ModelConfig) -> None:
        """Raises InvalidConfig."""
        self.max_model_len = resolve_max_model_len(config, model)
        self.keeping = CacheKeeping(config)
        self._config = config
        self._model = model

    def smallest(self) -> Capacity:
        """Of caches that hold the longest sequence."""
        return Capacity(-(-self.max_model_len // self._config.block_size) + 1, 0)

    def check_longest_sequence(self, capacity: Capacity) -> None:
        """The longest sequence must not depend on available memory: raises InvalidConfig if the
        cache cannot hold it, instead of serving shorter ones.
        """
        num_tokens = (capacity.num_gpu_blocks - 1) * self._config.block_size
        if num_tokens < self.max_model_len:
            whose = "" if self._config.max_model_len is not None else " (the model's)"
            raise InvalidConfig(
                f"max_model_len={self.max_model_len}{whose} does not fit a cache of {capacity.num_gpu_blocks} "
                f"blocks; set max_model_len to {num_tokens} or less, or give the cache more memory"
            )

    def limits(self, capacity: Capacity) -> Limits:
        """Of one request."""
        return Limits(
            self.max_model_len,
            capacity.num_gpu_blocks - 1,
            self._config.block_size,
            self._config.max_num_seqs,
            self._model.vocab_size,
            self._model.eos_token_ids,
            self._config.max_lora_rank if self._config.enable_lora else 0,
        )

    def empty_blocks(self, capacity: Capacity) -> BlockManager:
        return BlockManager(
            capacity,
            block_size=self._config.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=self._config.max_num_seqs,
            known=self.keeping.known,
            stores_a_step=self._config.stores_a_step,
            changes=self.keeping.changes,
            beginnings=self.keeping.beginnings,
        )


def outgrown_message(lane: Lane, blocks: BlockManager) -> str:
    """The error of a lane that fitted when it arrived but cannot continue."""
    num_tokens = [seq.num_tokens for seq in lane.seqs]
    needed = sum(map(blocks.num_blocks, num_tokens))
    return (
        f"its {sum(num_tokens)} tokens so far need {needed} cache blocks, and there are "
        f"{blocks.device.num_usable} since workers were replaced"
    )
