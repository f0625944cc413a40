"""One rank's part of a step: the request's arrays become tensors, go through this stage's layers, and come out as tokens."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.outputs import SamplerOutput
from engine.request import ExecuteModelRequest
from engine.worker.kv_cache import KVCache
from engine.worker.sampler import Sampled, num_top_logprobs, sample, take_rows, to_device
from ops.interface import AttentionMetadata, Ops
from parallel.pipeline import Stage

# Logits are made for so many rows at once: prompt logprobs may ask for thousands of rows of the whole vocabulary.
MAX_LOGITS_ROWS = 256
# Steps whose tokens later ones may refer to: more than there ever are in flight.
_NUM_KEPT_STEPS = 4


class ModelRunner:
    """Runs steps on one device. `model` is `parallel.models.build`'s, with weights; `speaks`: this rank's output is wanted."""

    def __init__(self, model: Any, cache: KVCache, *, ops: Ops, stage: Stage, hidden_size: int, speaks: bool) -> None:
        self._model = model
        self._cache = cache
        self._ops = ops
        self._stage = stage
        self._hidden_size = hidden_size
        self._speaks = speaks
        self._tokens: deque[tuple[int, Tensor]] = deque(maxlen=_NUM_KEPT_STEPS)  # (step, [R] int32), the newest last

    def run(self, request: ExecuteModelRequest) -> SamplerOutput | None:
        """The whole step, in the order of its contract; an output on the rank that speaks. execute_ns is left empty."""
        self._move_blocks(request)
        residual = self._forward(request) if len(request.input_ids) else None
        if not self._stage.is_last:
            return None
        sampled = self._sample(request, residual)
        if self._stage.is_first:
            self._tokens.append((request.step, sampled.token_ids))
        return _output(request, sampled) if self._speaks else None

    def measure_swap(self, num_blocks: int) -> float:
        """Seconds to swap the first `num_blocks` blocks out; the cache must be as new, and is so afterwards."""
        pairs = torch.arange(num_blocks, dtype=torch.int32, device=self._model.device)[:, None].repeat(1, 2)
        return min(self._time_swap_out(pairs) for _ in range(3))  # the first time makes the host's pages

    def _time_swap_out(self, pairs: Tensor) -> float:
        started = time.perf_counter()
        _for_each(lambda on_device, on_host: self._ops.swap_blocks(on_device, on_host, pairs), self._cache)
        if pairs.is_cuda:
            torch.cuda.synchronize(pairs.device)
        return time.perf_counter() - started

    def _move_blocks(self, request: ExecuteModelRequest) -> None:
        ops, cache, device = self._ops, self._cache, self._model.device
        if len(request.blocks_to_swap_out):
            pairs = to_device(request.blocks_to_swap_out, device)
            _for_each(lambda on_device, on_host: ops.swap_blocks(on_device, on_host, pairs), cache)
        if len(request.blocks_to_swap_in):
            pairs = to_device(request.blocks_to_swap_in, device)
            _for_each(lambda on_device, on_host: ops.swap_blocks(on_host, on_device, pairs), cache)
        if len(request.blocks_to_copy):
            pairs = to_device(request.blocks_to_copy, device)
            for layer in cache.device:
                for tensor in layer:
                    ops.copy_blocks(tensor, pairs)

    def _forward(self, request: ExecuteModelRequest) -> Tensor:
        """The residual stream [T, D] after this stage, which the next one has been sent."""
        stage, model = self._stage, self._model
        input_ids = self._input_ids(request) if stage.is_first else None
        received = None if stage.is_first else stage.recv(len(request.input_ids), self._hidden_size, model.dtype)
        positions = to_device(request.positions, model.device)
        residual: Tensor = model.forward(
            input_ids, received, positions, self._cache.device, _metadata(request, model.device)
        )
        if not stage.is_last:
            stage.send(residual)
        return residual

    def _input_ids(self, request: ExecuteModelRequest) -> Tensor:
        """[T] int32, the tokens that the driver does not know yet filled in."""
        input_ids = to_device(request.input_ids, self._model.device)
        if not len(request.carried_rows):
            return input_ids
        if not self._stage.is_last:
            raise ValueError("carried rows need the sampled tokens, which only a single stage has at its first layer")
        tokens = dict(self._tokens).get(request.carried_step)
        if tokens is None:
            raise ValueError(
                f"step {request.step} carries rows of step {request.carried_step}, whose tokens are not kept"
            )
        rows, sampled_rows = to_device(request.carried_rows, self._model.device).long().unbind(1)
        input_ids = input_ids.clone()  # it may be the request's own memory
        input_ids[rows] = tokens[sampled_rows]
        return input_ids

    def _sample(self, request: ExecuteModelRequest, residual: Tensor | None) -> Sampled:
        num_top = num_top_logprobs(request.sampling) if self._speaks else None
        num_rows = len(request.sampled_rows)
        parts = []
        for start in range(0, num_rows, MAX_LOGITS_ROWS):
            assert residual is not None, "rows are sampled of a step without tokens"
            stop = min(start + MAX_LOGITS_ROWS, num_rows)
            rows = to_device(request.sampled_rows[start:stop], residual.device)
            logits = self._model.logits(residual[rows])
            parts.append(sample(logits, take_rows(request.sampling, start, stop), self._ops, num_top))
        return _join(parts, self._model.device)


def _metadata(request: ExecuteModelRequest, device: torch.device) -> AttentionMetadata:
    return AttentionMetadata(
        query_starts=to_device(request.query_starts, device),
        context_lens=to_device(request.context_lens, device),
        block_tables=to_device(request.block_tables, device),
        slot_mapping=to_device(request.slot_mapping, device),
        max_query_len=int(np.diff(request.query_starts).max()),
        max_context_len=int(request.context_lens.max()),
    )


def _for_each(move: Callable[[Tensor, Tensor], None], cache: KVCache) -> None:
    """Call move(on device, on host) for the keys and for the values of each layer."""
    for device_layer, host_layer in zip(cache.device, cache.host, strict=True):
        for on_device, on_host in zip(device_layer, host_layer, strict=True):
            move(on_device, on_host)


def _join(parts: list[Sampled], device: torch.device) -> Sampled:
    if not parts:
        nothing = torch.empty(0, dtype=torch.int32, device=device)
        return Sampled(
            nothing, nothing.bool(), nothing.float(), nothing, nothing.view(0, 0), nothing.float().view(0, 0)
        )
    if len(parts) == 1:
        return parts[0]
    return Sampled(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Sampled)))


def _output(request: ExecuteModelRequest, sampled: Sampled) -> SamplerOutput:
    columns = {field.name: getattr(sampled, field.name).cpu().numpy() for field in fields(Sampled)}
    return SamplerOutput(request.epoch, request.step, **columns, execute_ns=np.empty(0, np.int64))
