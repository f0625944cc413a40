"""One rank's part of a step: the request's arrays become tensors, go through this stage's layers,
and come out as tokens.
"""

import time
from collections import deque
from dataclasses import fields, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.step import ExecuteModelRequest, LateMasks, none_follow
from engine.worker.cache.block_mover import BlockMover
from engine.worker.cache.kv_cache import KVCache
from engine.worker.device.device import Capture, Device
from engine.worker.device.transfer import upload
from engine.worker.graphs.decode_graphs import TAPE_SIZES, DecodeGraphs
from engine.worker.graphs.graphs import batch_sizes, context_limits
from engine.worker.graphs.sample_graphs import SampleGraphs
from engine.worker.pending import PendingStep
from engine.worker.pooler import pool
from engine.worker.sampler import Sampled, num_top_logprobs, sample, take_rows
from engine.worker.step_tensors import StepTensors
from ops.interface import AttentionMetadata
from parallel.decoder import Decoder

# Logits are made for so many rows at once: prompt logprobs may ask for thousands of rows of the
# whole vocabulary.
MAX_LOGITS_ROWS = 256
# Number of steps whose tokens are kept for later ones: more than are ever in flight.
_NUM_KEPT_STEPS = 4


class ModelRunner:
    """Runs steps on one device. `model` has its weights; `speaks`: this rank's output is wanted."""

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        *,
        device: Device,
        speaks: bool,
    ) -> None:
        self._model = model
        self._device = device
        self._cache = cache
        self._stage = model.stage
        self._hidden_size = model.config.layer.hidden_size
        self._speaks = speaks
        self._ops = model.ops
        self._mover = BlockMover(cache, model.ops, device)
        self._graphs: DecodeGraphs | None = None
        self._sample_graphs: SampleGraphs | None = None
        self._tokens: deque[tuple[int, Tensor]] = deque(maxlen=_NUM_KEPT_STEPS)  # (step, [R] int32), the newest last

    def use_graphs(self, capture: Capture, *, max_num_seqs: int, max_model_len: int) -> None:
        """Run decode steps, and plain sampling, by what `capture` makes of them from now on: CUDA
        graphs.
        """
        received = None if self._stage.is_first else (self._hidden_size, self._model.dtype)
        self._graphs = DecodeGraphs(
            partial(_layers, self._model, self._cache),
            capture,
            sizes=batch_sizes(max_num_seqs),
            context_limits=context_limits(max_model_len),
            received=received,
            device=self._model.device,
        )
        if self._stage.is_last:
            self._sample_graphs = SampleGraphs(
                self._model.logits,
                self._ops,
                capture,
                max_num_rows=min(max_num_seqs, MAX_LOGITS_ROWS),
                hidden_size=self._hidden_size,
                dtype=self._model.dtype,
                device=self._model.device,
            )

    def use_tapes(self, capture: Capture, *, max_model_len: int) -> None:
        """Run the layers of small decode steps by what `capture` makes of them from now on: tapes
        of kernel calls.

        Embeddings are computed before: they take functions of torch, which cannot be on a tape.
        """
        self._graphs = DecodeGraphs(
            partial(_layers, self._model, self._cache),
            capture,
            sizes=TAPE_SIZES,
            context_limits=[max_model_len],
            received=(self._hidden_size, self._model.dtype),
            device=self._model.device,
            embed=self._model.embedding if self._stage.is_first else None,
            shares_memory=False,
        )

    def drop_graphs(self) -> None:
        """Launch all of a step as it comes from now on."""
        self._graphs = None
        self._sample_graphs = None

    def launch(self, request: ExecuteModelRequest, late_masks: LateMasks = none_follow) -> PendingStep:
        """The whole step, in the order of its contract; an output on the rank that speaks. On a GPU
        nothing is waited for but masks that have not come, which leaves the device its layers.
        """
        launched_ns = time.perf_counter_ns()
        self._mover.move(request)
        residual = self._forward(request) if len(request.input_ids) else None
        sampled = self._sample(request, residual, late_masks) if self._stage.is_last else None
        if sampled is not None and self._stage.is_first:
            self._tokens.append((request.step, sampled.token_ids))
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

    def _forward(self, request: ExecuteModelRequest) -> Tensor:
        """The residual stream [T, D] after this stage, which the next one has been sent."""
        stage, dtype = self._stage, self._model.dtype
        received = None if stage.is_first else stage.recv(len(request.input_ids), self._hidden_size, dtype)
        if self._graphs is not None and self._graphs.takes(request):
            residual = self._graphs.run(request, lambda input_ids: self._fill_carried(request, input_ids), received)
            if not stage.is_last:
                residual = residual.clone()  # the next step may begin before it has been sent
        else:
            residual = _layers(self._model, self._cache, self._step_tensors(request, received))
        if not stage.is_last:
            stage.send(residual)
        return residual

    def _step_tensors(self, request: ExecuteModelRequest, received: Tensor | None) -> StepTensors:
        names = ("positions", "query_starts", "context_lens", "block_tables", "slot_mapping")
        arrays = {name: getattr(request, name) for name in names}
        if self._stage.is_first:
            # What is filled in is not to change the request's own memory.
            arrays["input_ids"] = request.input_ids.copy() if len(request.carried_rows) else request.input_ids
        tensors = upload(arrays, self._model.device)
        positions, input_ids = tensors.pop("positions"), tensors.pop("input_ids", None)
        if input_ids is not None:
            self._fill_carried(request, input_ids)
        metadata = AttentionMetadata(
            **tensors,
            max_query_len=int(np.diff(request.query_starts).max()),
            max_context_len=int(request.context_lens.max()),
        )
        return StepTensors(input_ids, received, positions, metadata)

    def _fill_carried(self, request: ExecuteModelRequest, input_ids: Tensor) -> None:
        """Write the tokens that the driver does not know yet into input_ids [T] int32."""
        if not len(request.carried_rows):
            return
        if not (self._stage.is_first and self._stage.is_last):
            raise ValueError("carried rows need the sampled tokens, which only a single stage has at its first layer")
        tokens = dict(self._tokens).get(request.carried_step)
        if tokens is None:
            raise ValueError(
                f"step {request.step} carries rows of step {request.carried_step}, whose tokens are not kept"
            )
        rows, sampled_rows = request.carried_rows.astype(np.int64).T
        carried = upload({"rows": rows, "sampled_rows": sampled_rows}, input_ids.device)
        input_ids.index_copy_(0, carried["rows"], tokens.index_select(0, carried["sampled_rows"]))

    def _sample(self, request: ExecuteModelRequest, residual: Tensor | None, late_masks: LateMasks) -> Sampled:
        columns = request.sampling
        if self._sample_graphs is not None and not request.awaits_masks and self._sample_graphs.takes(columns):
            assert residual is not None, "rows are sampled of a step without tokens"
            return self._sample_graphs.run(_take(residual, request.sampled_rows), columns)
        num_top = num_top_logprobs(columns) if self._speaks else None
        num_rows = len(request.sampled_rows)
        parts = []
        for start in range(0, num_rows, MAX_LOGITS_ROWS):
            assert residual is not None, "rows are sampled of a step without tokens"
            stop = min(start + MAX_LOGITS_ROWS, num_rows)
            logits = self._model.logits(_take(residual, request.sampled_rows[start:stop]))
            if request.awaits_masks and start == 0:
                masks = late_masks(request)
                columns = replace(columns, mask_starts=masks.mask_starts, mask_words=masks.mask_words)
            parts.append(sample(logits, take_rows(columns, start, stop), self._ops, num_top))
        return _join(parts, self._model.device)


def _layers(model: Decoder, cache: KVCache, tensors: StepTensors) -> Tensor:
    """The residual stream [T, D] after this stage's layers."""
    return model.forward(tensors.input_ids, tensors.residual, tensors.positions, cache.device, tensors.metadata)


def _take(residual: Tensor, rows: np.ndarray) -> Tensor:
    """These rows of residual [T, D]; in decode steps they are all of them, one after the other."""
    if np.array_equal(rows, np.arange(len(residual))):
        return residual
    return residual[upload({"rows": rows}, residual.device)["rows"]]


def _join(parts: list[Sampled], device: torch.device) -> Sampled:
    if not parts:
        nothing = torch.empty(0, dtype=torch.int32, device=device)
        return Sampled(
            nothing, nothing.bool(), nothing.float(), nothing, nothing.view(0, 0), nothing.float().view(0, 0)
        )
    if len(parts) == 1:
        return parts[0]
    return Sampled(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Sampled)))
