"""A stage's layers over one step: launched one by one, or replayed from a graph or tape."""

import torch
from torch import Tensor

from engine.step import ExecuteModelRequest
from engine.worker.adapters.kept import Adapters
from engine.worker.cache.kv_cache import KVCache
from engine.worker.device.device import Capture
from engine.worker.graphs.decode_graphs import TAPE_SIZES, DecodeGraphs, Forward
from engine.worker.graphs.graphs import batch_sizes, context_limits, mixed_sizes
from engine.worker.graphs.mixed_graphs import MixedGraphs
from engine.worker.inputs import MAX_LOGITS_ROWS, Inputs
from parallel.adapters.adapter import RowAdapters
from parallel.decoder import Decoder


class Layers:
    """Of one rank, on one cache."""

    def __init__(self, model: Decoder, cache: KVCache, adapters: tuple[int, int, int]) -> None:
        """adapters: see `ModelRunner`."""
        self._model = model
        self._cache = cache
        self._has_adapters = adapters[0] > 0
        self._adapters = Adapters(model, *adapters, max_taped_rows=TAPE_SIZES[-1])
        self._hidden_size = model.config.layer.hidden_size
        self.graphs: DecodeGraphs | None = None
        self.adapted_graphs: DecodeGraphs | None = None  # of steps in which rows have adapters
        self.mixed_graphs: MixedGraphs | None = None

    def use_graphs(
        self, capture: Capture, inputs: Inputs, *, max_num_seqs: int, max_model_len: int, max_num_batched_tokens: int
    ) -> None:
        """Run decode steps, and small mixed ones, by what `capture` makes of them from now on: CUDA
        graphs. No step may be under way.
        """
        inputs.drawn.make_ring(max(max_num_seqs, MAX_LOGITS_ROWS), self._model.device)
        forward = _forward_of(self._model, self._cache, None)
        self.hidden = hidden = torch.zeros(
            (max(mixed_sizes(max_num_batched_tokens)[-1], max_num_seqs), self._hidden_size),
            dtype=self._model.dtype,
            device=self._model.device,
        )
        received = None if self._model.stage.is_first else (self._hidden_size, self._model.dtype)
        self.mixed_graphs = MixedGraphs(
            forward,
            capture,
            max_num_rows=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            hidden=hidden,
            is_first=self._model.stage.is_first,
            place=inputs.place,
        )
        self.graphs = DecodeGraphs(
            forward,
            capture,
            sizes=batch_sizes(max_num_seqs),
            context_limits=context_limits(max_model_len),
            received=received,
            num_kv_heads=self._model.num_kv_heads,
            device=self._model.device,
            place=inputs.place,
            hidden=hidden,
        )

    def use_tapes(self, capture: Capture, inputs: Inputs, *, max_model_len: int) -> None:
        """Run decode steps of few rows by what `capture` makes of them from now on: tapes of kernel
        calls.

        Embeddings are computed before: they take functions of torch, which cannot be on a tape. No
        step may be under way.
        """
        inputs.drawn.drop_ring()
        self.graphs = self._tapes(_forward_of(self._model, self._cache, None), capture, max_model_len)
        if self._has_adapters:
            forward = _forward_of(self._model, self._cache, self._adapters.places)
            self.adapted_graphs = self._tapes(forward, capture, max_model_len)

    def _tapes(self, forward: Forward, capture: Capture, max_model_len: int) -> DecodeGraphs:
        return DecodeGraphs(
            forward,
            capture,
            sizes=TAPE_SIZES,
            context_limits=[max_model_len],
            received=(self._hidden_size, self._model.dtype),
            num_kv_heads=self._model.num_kv_heads,
            device=self._model.device,
            embed=self._model.embedding if self._model.stage.is_first else None,
            is_warmed_up=False,
        )

    def drop_graphs(self) -> None:
        """Launch steps one by one from now on."""
        self.graphs = self.adapted_graphs = self.mixed_graphs = None

    def capture_graphs(self) -> None:
        """All there can be, those of the largest steps first: the others find room in the memory
        that they leave. As `DecodeGraphs.capture_all`.
        """
        for graphs in (self.mixed_graphs, self.graphs):
            if graphs is not None:
                graphs.capture_all()

    def run(self, request: ExecuteModelRequest, inputs: Inputs) -> Tensor:
        """As `Decoder.forward`: the residual stream [T, D] after this stage, which the next one has
        been sent, or the last one's hidden states. Raises InvalidAdapter.
        """
        stage, dtype = self._model.stage, self._model.dtype
        adapters = self._adapters.of(request)
        received = None if stage.is_first else stage.recv(len(request.input_ids), self._hidden_size, dtype)
        graphs = self._graphs_for(request, has_adapters=adapters is not None)
        if graphs is not None:
            if adapters is not None:
                self._adapters.places.assign(adapters)
            result = graphs.run(request, inputs, received)
            if not stage.is_last:
                result = result.clone()  # the next step may begin before it has been sent
        else:
            forward = _forward_of(self._model, self._cache, adapters)
            result = forward(inputs.step_tensors(request, received))
        if not stage.is_last:
            stage.send(result)
        return result

    def _graphs_for(self, request: ExecuteModelRequest, *, has_adapters: bool) -> DecodeGraphs | MixedGraphs | None:
        """Those that take the step, if any: on every rank the same."""
        if has_adapters:
            candidates: tuple[DecodeGraphs | MixedGraphs | None, ...] = (self.adapted_graphs,)
        else:
            candidates = self.graphs, self.mixed_graphs
        return next((graphs for graphs in candidates if graphs is not None and graphs.takes(request)), None)


def _forward_of(model: Decoder, cache: KVCache, adapters: RowAdapters | None) -> Forward:
    return lambda tensors: model.forward(
        tensors.input_ids, tensors.residual, tensors.positions, cache.device, tensors.metadata, adapters
    )
