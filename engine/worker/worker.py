"""One rank: its shard of the model, its cache, and the steps it runs. It holds no sequences."""

import time

import torch

from engine.config import EngineConfig
from engine.executor import Weights
from engine.outputs import NO_FETCHED, FetchedBlocks, SamplerOutput
from engine.step import ExecuteModelRequest, LateMasks, none_follow
from engine.worker.cache.room import CacheRoom
from engine.worker.device.errors import has_failed, out_of_memory_advice
from engine.worker.loading import load, reload
from engine.worker.model_runner import ModelRunner
from engine.worker.pending import PendingStep
from engine.worker.ranks import LOOPBACK, Store


class Worker:
    """Loads its shard when it is made, gets its cache by `initialize_cache`, then executes steps.

    One thread's, but for `finish` and `abort`.
    """

    def __init__(
        self,
        config: EngineConfig,
        rank: int = 0,
        *,
        store: Store | None = None,
        host: str = LOOPBACK,
        num_ranks_here: int = 1,
        weights: Weights | None = None,
    ) -> None:
        """`host`: an address of this machine that the other ranks can reach; they meet at `store`.
        `weights`: None: those that are configured. Raises InvalidConfig.
        """
        self._shard = load(config, rank, store, host, num_ranks_here, weights)
        self.sample = self._shard.sample  # of its weights
        self._weights, self._has_weights = weights, True
        self._ranks = self._shard.ranks
        self._room = CacheRoom(self._shard)
        self._runner: ModelRunner | None = None
        self._free_since_ns = 0  # when the last step that was finished had ended

    @property
    def arithmetic(self) -> dict[str, str]:
        """As `Shard.arithmetic`."""
        return self._shard.arithmetic

    @property
    def report(self) -> str:
        """As `Shard.report`."""
        return self._shard.report

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """How many device blocks (the null block counted in) and host blocks this rank has room
        for.
        """
        return self._room.num_blocks()

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int, weights_digest: str | None = None) -> float:
        """Make the cache; measured seconds to swap one block, one way (0 without host blocks).
        `weights_digest`: of all files; None: they are all on this node.
        """
        self._runner = None  # its cache and graphs go before the next one's come
        if weights_digest is not None:
            self._shard = self._shard.with_digest(weights_digest)
        with out_of_memory_advice("the cache was made", "lower gpu_memory_utilization or kv_cache_memory_bytes"):
            self._runner = self._shard.make_runner(num_gpu_blocks, num_cpu_blocks)
        self._shard.use_graphs(self._runner)
        if self._shard.device.graphs_hold_torch:
            with torch.inference_mode():
                self._runner.capture_graphs()
        num_moved = min(16, num_gpu_blocks, num_cpu_blocks)
        return self._runner.measure_swap(num_moved) / num_moved if num_moved else 0.0

    def rejoin(self, store: Store | None, host: str) -> None:
        """Meet the other ranks again, some of them new, at another store; weights and cache stay as
        they are.
        """
        self._shard.device.synchronize()  # steps behind one that failed may still be in the groups' memory
        if self._runner is not None:
            self._runner.drop_graphs()  # they hold the groups' communicators and memory
        self._ranks.leave()
        self._ranks.join(store, host)
        if self._runner is not None:
            self._shard.use_graphs(self._runner)

    @property
    def has_cache(self) -> bool:
        """Whether it can execute steps."""
        return self._runner is not None

    def hold(self, weights: Weights | None) -> None:
        """Have these weights, which are read unless they are held. What was computed with others
        goes: `initialize_cache` is next then. Raises InvalidConfig, and has none.
        """
        if self._has_weights and weights == self._weights:
            return
        had_weights, self._runner, self._has_weights = self._has_weights, None, False
        self._shard = reload(self._shard, weights, has_draft=had_weights)
        self.sample = self._shard.sample
        self._weights, self._has_weights = weights, True

    def sleep(self, level: int) -> None:
        """Free the cache, and on level 2 the weights; `hold` and `initialize_cache` undo it."""
        if self._runner is not None:
            self._runner.drop_graphs()  # which hold what they compute in
        self._runner = None
        if level > 1:
            self._has_weights = False
            self._shard.unload()
        if (memory := self._shard.device.memory) is not None:
            memory.release()

    def abort(self) -> None:
        """From any thread: make this rank, and all that wait for it, leave their collectives with
        an error.
        """
        self._ranks.abort()

    @property
    def is_asynchronous(self) -> bool:
        """Whether `launch` returns before the step has ended, so that it is worth launching the
        next one meanwhile.
        """
        return self._shard.device.is_asynchronous

    def execute(self, request: ExecuteModelRequest, late_masks: LateMasks = none_follow) -> SamplerOutput | None:
        """Run one step; None unless this is the last stage's first rank. An error is every rank's:
        none is left waiting.
        """
        return self.finish(self.launch(request, late_masks))

    def launch(self, request: ExecuteModelRequest, late_masks: LateMasks = none_follow) -> PendingStep:
        """Begin one step, after those launched before."""
        assert self._runner is not None, "there is no cache yet"
        try:
            with torch.inference_mode():
                return self._runner.launch(request, late_masks)
        except Exception:
            self._fail()
            raise

    def finish(self, step: PendingStep) -> SamplerOutput | None:
        """Wait for the step that was launched the longest ago; as `execute`. May be another
        thread's than `launch`.
        """
        try:
            output = step.result(self._free_since_ns)
            self._ranks.check()
        except Exception:
            self._fail()
            raise
        self._free_since_ns = time.perf_counter_ns()
        return output

    def _fail(self) -> None:
        if self.is_asynchronous:
            self.abort()  # another thread may be in a collective
        else:
            self._ranks.fail()

    def take_fetched(self) -> FetchedBlocks:
        """Of this rank, those that no output has told yet. From any thread."""
        return NO_FETCHED if self._runner is None else self._runner.moves.take_fetched()

    def blames_peer(self, error: Exception) -> bool:
        """Whether an error of `execute` may be another rank's doing: a collective failed."""
        return self._ranks.may_have_caused(error)

    def is_beyond_repair(self, error: Exception) -> bool:
        """Whether the device has failed: then no later step can succeed in this process."""
        return has_failed(error)
