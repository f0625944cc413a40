"""A GPU as a device: launches return before their work is done."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.worker.device.device import Capture, Event, Replay, SideStream
from engine.worker.device.pinned import pinned_zeros


def find_gpu() -> "CudaDevice | None":
    """This process' current one, if it sees any."""
    return CudaDevice(torch.device("cuda", torch.cuda.current_device())) if torch.cuda.is_available() else None


class CudaDevice:
    """Its graphs are CUDA graphs."""

    is_asynchronous = True
    graphs_name = "CUDA graphs"
    graphs_hold_torch = True

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device
        self.memory = CudaMemory(device)

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.torch_device)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.torch_device)

    def host_zeros(self, num_bytes: int) -> Tensor:
        return pinned_zeros(num_bytes, torch.cuda.cudart())

    def capture(self) -> Capture:
        return CudaCapture()

    def side_stream(self) -> SideStream:
        return CudaSideStream(self.torch_device)

    def record_event(self) -> Event:
        event = torch.cuda.Event()
        event.record()
        return event

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)


class CudaMemory:
    """A GPU's `Memory`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_and_total(self) -> tuple[int, int]:
        return torch.cuda.mem_get_info(self._device)

    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def reserved(self) -> int:
        return torch.cuda.memory_reserved(self._device)

    def release(self) -> None:
        torch.cuda.empty_cache()

    def peak(self, work: Callable[[], object]) -> int:
        before = self.allocated()
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        return torch.cuda.max_memory_allocated(self._device) - before


class CudaCapture:
    """A `Capture`. All graphs share a memory pool: one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        # Other threads may wait for events meanwhile: that of the outputs, NCCL's.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = compute()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


class CudaSideStream:
    """Tensors that the work makes belong to the side stream; those it is given must outlive it."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def launch(self, work: Callable[[], None]) -> Any:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()
        return self._stream.record_event()

    def wait(self, mark: Any) -> None:
        torch.cuda.current_stream().wait_event(mark)

    def finish(self) -> None:
        self._stream.synchronize()
