"""One rank's part of a step: the request's arrays become tensors, go through this stage's layers,
and come out as tokens.
"""

import time

from engine.step import ExecuteModelRequest, LateMasks, none_follow
from engine.worker.cache.kv_cache import KVCache, joined
from engine.worker.cache.moves import Files, Moves
from engine.worker.device.device import Capture, Device
from engine.worker.drafting.proposer import Proposer
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
        adapters: tuple[int, int, int] = (0, 0, 0),
        files: Files | None = None,
        draft: tuple[Decoder, KVCache] | None = None,
    ) -> None:
        """`adapters`: how many are ready for a step at most, and kept in all, and their highest
        rank; 0: no row may have one. `files`: of the third tier, if there is one. `draft`: a draft
        model with its cache, of the rank that speaks.
        """
        self._model = model
        self._device = device
        self._stage = model.stage
        self._speaks = speaks
        self.moves = Moves(cache if draft is None else joined(cache, draft[1]), model.ops, device, files)
        self._inputs = Inputs(model, cache.token_ids)
        self._layers = Layers(model, cache, adapters)
        self._sampler = RowSampler(model, cache.token_ids, self._inputs, speaks=speaks)
        self._proposer = None if draft is None else Proposer(*draft)

    def use_graphs(
        self, capture: Capture, *, max_num_seqs: int, max_model_len: int, max_num_batched_tokens: int
    ) -> None:
        """Run decode steps, small mixed ones, and common sampling, by what `capture` makes of them
        from now on: CUDA graphs.
        """
        sizes = {
            "max_num_seqs": max_num_seqs,
            "max_model_len": max_model_len,
            "max_num_batched_tokens": max_num_batched_tokens,
        }
        self._layers.use_graphs(capture, self._inputs, **sizes)
        if self._stage.is_last:
            self._sampler.use_graphs(
                capture, self._layers.hidden, max_num_seqs=max_num_seqs, max_model_len=max_model_len
            )
        if self._proposer is not None:
            self._proposer.use_graphs(capture, **sizes)

    def capture_graphs(self) -> None:
        """All there can be, before the first request; every rank must, in inference mode."""
        self._layers.capture_graphs()
        if self._sampler.graphs is not None:
            self._sampler.graphs.capture_all()
        if self._proposer is not None:
            self._proposer.capture_graphs()

    def use_tapes(self, capture: Capture, *, max_model_len: int) -> None:
        """See `Layers.use_tapes`."""
        self._layers.use_tapes(capture, self._inputs, max_model_len=max_model_len)
        if self._proposer is not None:
            self._proposer.use_tapes(capture, max_model_len=max_model_len)

    def drop_graphs(self) -> None:
        """Launch all of a step as it comes from now on."""
        self._layers.drop_graphs()
        self._sampler.graphs = None

    def launch(self, request: ExecuteModelRequest, late_masks: LateMasks = none_follow) -> PendingStep:
        """The whole step, in the order of its contract; an output on the rank that speaks. On a GPU
        nothing is waited for but masks that have not come, which leaves the device its layers, and
        the tokens on which a draft model guesses.
        """
        launched_ns = time.perf_counter_ns()
        request = self._inputs.read(request)
        self.moves.move(request)
        if self._stage.is_first and not self._stage.is_last:
            self._inputs.drawn.take(request)
        hidden = self._layers.run(request, self._inputs) if len(request.input_ids) else None
        pooled = None
        if self._speaks and hidden is not None and len(request.pooled_ranges):
            pooled = pool(hidden, request.pooled_ranges)  # before a graph that samples may write over them
        sampled = self._sampler.sample(request, hidden, late_masks) if self._stage.is_last else None
        if sampled is not None:
            self._inputs.drawn.drew(request, sampled.token_ids, is_in_ring=sampled.is_in_ring)
        guessed = None
        if self._proposer is not None and sampled is not None and len(request.drafting):
            guessed = self._proposer.propose(request, sampled.token_ids)
        own = sampled if self._speaks else None
        return PendingStep(request, own, self._device, launched_ns, pooled, guessed, self.moves.take_fetched)

    def measure_swap(self, num_blocks: int) -> float:
        """As `Moves.measure_swap`."""
        return self.moves.measure_swap(num_blocks)
