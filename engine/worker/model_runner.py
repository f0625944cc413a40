"""One rank's part of a step: the request's arrays become tensors, go through this stage's layers,
and come out as tokens.
"""

import time

import numpy as np

from engine.step import ExecuteModelRequest, LateMasks, none_follow
from engine.worker.cache.block_mover import BlockMover
from engine.worker.cache.kv_cache import KVCache
from engine.worker.device.device import Capture, Device
from engine.worker.graphs.layers import Layers
from engine.worker.head.pooler import pool
from engine.worker.head.row_sampler import RowSampler
from engine.worker.inputs import Inputs
from engine.worker.pending import PendingStep
from parallel.decoder import Decoder


class ModelRunner:
    """Runs steps on one device. `model` has its weights; `speaks`: this rank's output is wanted."""

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        *,
        device: Device,
        speaks: bool,
        num_kept_adapters: int = 0,
    ) -> None:
        """`num_kept_adapters`: at most; 0: no row may have one."""
        self._model = model
        self._device = device
        self._stage = model.stage
        self._speaks = speaks
        self._mover = BlockMover(cache, model.ops, device)
        self._inputs = Inputs(model)
        self._layers = Layers(model, cache, num_kept_adapters)
        self._sampler = RowSampler(model, cache.token_ids, self._inputs, speaks=speaks)

    def use_graphs(self, capture: Capture, *, max_num_seqs: int, max_model_len: int) -> None:
        """Run decode steps, and plain sampling, by what `capture` makes of them from now on: CUDA
        graphs.
        """
        self._layers.use_graphs(capture, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        if self._stage.is_last:
            self._sampler.use_graphs(capture, max_num_seqs=max_num_seqs)

    def capture_graphs(self) -> None:
        """All there can be, before the first request; every rank must, in inference mode."""
        for graphs in (self._layers.graphs, self._sampler.graphs):
            if graphs is not None:
                graphs.capture_all()

    def use_tapes(self, capture: Capture, *, max_model_len: int) -> None:
        """See `Layers.use_tapes`."""
        self._layers.use_tapes(capture, max_model_len=max_model_len)

    def drop_graphs(self) -> None:
        """Launch all of a step as it comes from now on."""
        self._layers.graphs = None
        self._sampler.graphs = None

    def launch(self, request: ExecuteModelRequest, late_masks: LateMasks = none_follow) -> PendingStep:
        """The whole step, in the order of its contract; an output on the rank that speaks. On a GPU
        nothing is waited for but masks that have not come, which leaves the device its layers.
        """
        launched_ns = time.perf_counter_ns()
        self._mover.move(request)
        residual = self._layers.run(request, self._inputs) if len(request.input_ids) else None
        sampled = self._sampler.sample(request, residual, late_masks) if self._stage.is_last else None
        if sampled is not None and self._stage.is_first:
            self._inputs.keep(request.step, sampled.token_ids)
        pooled = None
        if self._speaks and residual is not None and len(request.pooled_ranges):
            pooled = pool(self._model.hidden_states, residual, request.pooled_ranges)
        return PendingStep(request, sampled if self._speaks else None, self._device, launched_ns, pooled)

    def measure_swap(self, num_blocks: int) -> float:
        """Seconds to swap the first `num_blocks` blocks out; the cache must be as new, and is so
        afterwards.
        """
        pairs = np.arange(num_blocks, dtype=np.int32)[:, None].repeat(2, axis=1)
        return min(self._time_swap_out(pairs) for _ in range(3))  # the first time makes the host's pages

    def _time_swap_out(self, pairs: np.ndarray) -> float:
        started = time.perf_counter()
        self._mover.swap_out(pairs)
        self._device.synchronize()
        return time.perf_counter() - started
