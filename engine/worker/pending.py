"""A step that was launched: on a GPU it may still run while the next one is launched."""

import time
from dataclasses import fields

import numpy as np

from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest
from engine.worker.device.device import Device
from engine.worker.device.transfer import Download
from engine.worker.head.pooler import Pooled
from engine.worker.head.sampler import Sampled

_NUM_COLUMNS = len(fields(Sampled))


class PendingStep:
    """Made when all of the step has been launched in the current stream. `sampled`: None on a rank
    that does not speak.
    """

    def __init__(
        self,
        request: ExecuteModelRequest,
        sampled: Sampled | None,
        device: Device,
        launched_ns: int,
        pooled: Pooled | None = None,
    ) -> None:
        """launched_ns: when the launch began, of `time.perf_counter_ns`."""
        self._epoch, self._step = request.epoch, request.step
        self._launched_ns = launched_ns
        self._columns: Download | None = None
        if sampled is not None:
            own = [getattr(sampled, field.name) for field in fields(Sampled)]
            self._columns = Download(own if pooled is None else [*own, pooled.sums, pooled.are_finite])
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
        columns, pooled = arrays[:_NUM_COLUMNS], arrays[_NUM_COLUMNS:]
        return SamplerOutput(self._epoch, self._step, *[*columns, np.array([elapsed_ns], np.int64), *pooled])
