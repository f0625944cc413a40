"""A step that was launched: on a GPU it may still run while the next one is launched."""

import time
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
from torch import Tensor

from engine.outputs import NO_FETCHED, NO_FLAGS, NO_SUMS, FetchedBlocks, SamplerOutput
from engine.step import ExecuteModelRequest
from engine.worker.device.device import Device
from engine.worker.device.transfer import Download
from engine.worker.head.pooler import Pooled
from engine.worker.head.sampler import PackedSample, Sampled, unpacked

_NUM_COLUMNS = len(fields(Sampled))


class PendingStep:
    """Made when all of the step has been launched in the current stream. `sampled`: None on a rank
    that does not speak.
    """

    def __init__(
        self,
        request: ExecuteModelRequest,
        sampled: Sampled | PackedSample | None,
        device: Device,
        launched_ns: int,
        pooled: Pooled | None = None,
        guessed: Tensor | None = None,
        take_fetched: Callable[[], FetchedBlocks] = lambda: NO_FETCHED,
    ) -> None:
        """launched_ns: when the launch began, of `time.perf_counter_ns`; guessed: by a draft model;
        take_fetched: what was fetched meanwhile.
        """
        self._take_fetched = take_fetched
        self._epoch, self._step = request.epoch, request.step
        self._launched_ns = launched_ns
        self._columns: Download | None = None
        self._num_packed: int | None = None  # rows, of one array that is all columns
        if sampled is not None:
            if isinstance(sampled, PackedSample):
                own, self._num_packed = [sampled.words], len(sampled.token_ids)
            else:
                own = [getattr(sampled, field.name) for field in fields(Sampled)]
            self._has_pooled = pooled is not None
            own += [] if pooled is None else [pooled.sums, pooled.are_finite]
            self._columns = Download(own if guessed is None else [*own, guessed])
        self._event = device.record_event()

    def result(self, free_since_ns: int = 0) -> SamplerOutput | None:
        """Wait for the step. If `free_since_ns` is later than its launch, its time counts from
        then: the device was busy.
        """
        self._event.synchronize()
        if self._columns is None:
            return None
        elapsed_ns = time.perf_counter_ns() - max(self._launched_ns, free_since_ns)
        arrays = self._columns.arrays()
        if self._num_packed is not None:
            arrays = unpacked(arrays[0], self._num_packed) + arrays[1:]
        columns, more = arrays[:_NUM_COLUMNS], arrays[_NUM_COLUMNS:]
        pooled = more[:2] if self._has_pooled else [NO_SUMS, NO_FLAGS]
        guessed = more[2 * self._has_pooled :]
        times = np.array([elapsed_ns], np.int64)
        output = SamplerOutput(self._epoch, self._step, *[*columns, times, *pooled])
        if guessed:
            output = replace(output, draft_ids=guessed[0])
        fetched = self._take_fetched()
        return replace(output, fetched=fetched) if len(fetched) else output
