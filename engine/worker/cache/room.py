"""How many blocks of cache a rank has room for: where the cache lies in the device's own memory,
steps of every kind and the largest ones there can be are run to see what they leave.
"""

import math

import torch

from engine.config import default_cpu_blocks
from engine.errors import InvalidConfig
from engine.step import ExecuteModelRequest
from engine.worker.cache.trial_steps import decode_request, mixed_request, prefill_request
from engine.worker.cache.warm_up import warm_up
from engine.worker.device.device import Memory
from engine.worker.device.errors import out_of_memory_advice
from engine.worker.graphs.graphs import BYTES_PER_GRAPH, buffer_bytes, mixed_sizes, num_graphs
from engine.worker.model_runner import ModelRunner
from engine.worker.shard import Shard


class CacheRoom:
    """Of a rank."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._measured: int | None = None  # bytes, before there was a cache

    def num_blocks(self) -> tuple[int, int]:
        """How many device blocks (the null block counted in) and host blocks. Raises
        InvalidConfig.
        """
        config, memory = self._shard.config, self._shard.device.memory
        block_bytes = self._shard.block_bytes
        num_cpu_blocks = config.host_cache_bytes // block_bytes
        runner = None if memory is None else self._warm_runner()
        if config.num_gpu_blocks_override is not None:
            return config.num_gpu_blocks_override, num_cpu_blocks
        if config.kv_cache_memory_bytes:
            room = config.kv_cache_memory_bytes
        elif memory is None or runner is None:
            room = default_cpu_blocks(config, self._shard.max_model_len, block_bytes) * block_bytes
        else:
            room = self._measure(runner, memory)
        if room < 2 * block_bytes:
            advice = f"raise kv_cache_memory_bytes to {2 * block_bytes} or more"
            if memory is not None and config.kv_cache_memory_bytes is None:
                _, total = memory.free_and_total()
                advice = no_room_advice(2 * block_bytes - room, total, config.gpu_memory_utilization)
            raise InvalidConfig(f"{room} bytes are left for the cache, and two blocks take {2 * block_bytes}; {advice}")
        return room // block_bytes, num_cpu_blocks

    def _warm_runner(self) -> ModelRunner:
        """With a cache of two blocks, and whose kernels are compiled."""
        config = self._shard.config
        advice = "lower max_num_batched_tokens or max_num_seqs, or raise tensor_parallel_size"
        with out_of_memory_advice("steps of every kind were tried", advice):
            runner = self._shard.make_runner(2, 0)
            warm_up(
                runner,
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=self._shard.max_model_len,
                vocab_size=self._shard.model.config.vocab_size,
            )
        return runner

    def _measure(self, runner: ModelRunner, memory: Memory) -> int:
        """Every rank must call it: the ranks exchange in the steps. A rank that meets new ones has
        its cache already, and measures only because theirs takes all of them.
        """
        room = self._bytes_left(runner, memory)
        if self._measured is None:
            self._measured = room
        return self._measured

    def _bytes_left(self, runner: ModelRunner, memory: Memory) -> int:
        """Bytes of `gpu_memory_utilization` of the device's memory that weights, the largest steps'
        activations and other processes leave.

        Graphs keep what they compute in to themselves: as much as the largest step that has one
        takes, BYTES_PER_GRAPH each, and buffers.
        """
        config, longest = self._shard.config, self._shard.max_model_len
        prefill = prefill_request(config.max_num_batched_tokens, config.max_num_seqs, longest)
        decode = decode_request(config.max_num_seqs, longest)
        most_rows = mixed_sizes(config.max_num_batched_tokens)[-1]
        mixed = mixed_request(most_rows, min(config.max_num_seqs, most_rows), longest)
        before = memory.allocated()
        with torch.inference_mode():
            activations = [_activation_bytes(runner, request, memory) for request in (prefill, decode, mixed)]
        activation_bytes = max(activations)
        if num_captured := self._num_graphs():
            activation_bytes += max(activations[1:]) + num_captured * BYTES_PER_GRAPH
            sizes = config.max_num_batched_tokens, config.max_num_seqs, longest
            models = [model for model in (self._shard.model, self._shard.draft) if model is not None]
            activation_bytes += sum(buffer_bytes(model, *sizes) for model in models)
        memory.release()
        free, total = memory.free_and_total()
        others = total - free - memory.reserved()
        return int(total * config.gpu_memory_utilization - before - activation_bytes - others)

    def _num_graphs(self) -> int:
        """At most."""
        if self._shard.why_no_graphs() is not None:
            return 0
        config, longest = self._shard.config, self._shard.max_model_len
        samples = self._shard.ranks.stage.is_last
        of_one = num_graphs(config.max_num_seqs, longest, config.max_num_batched_tokens, samples=samples)
        return of_one if self._shard.draft is None else 2 * of_one


def _activation_bytes(runner: ModelRunner, request: ExecuteModelRequest, memory: Memory) -> int:
    """What the step has allocated at its peak."""
    advice = "lower max_num_batched_tokens or max_num_seqs, or raise tensor_parallel_size"
    with out_of_memory_advice("the largest step was tried", advice):
        return memory.peak(lambda: runner.launch(request).result())


def no_room_advice(missing: int, total: int, utilization: float) -> str:
    """What makes room for so many bytes more, of a GPU's total: gpu_memory_utilization, as far as
    that goes, else less.
    """
    enough = math.ceil(100 * (utilization + missing / total)) / 100
    if enough <= 1:
        return f"gpu_memory_utilization={enough:g} would do"
    return (
        "raise tensor_parallel_size or pipeline_parallel_size, set quantization to int8 or int4, or lower "
        f"max_num_batched_tokens: {missing} bytes are missing of the {total} of this GPU"
    )
