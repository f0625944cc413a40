"""The GPUs that NVIDIA's driver shows, without torch."""

import contextlib
from dataclasses import dataclass
from typing import Any

from ray._private.thirdparty import pynvml


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    total: int  # bytes; 0: the driver does not tell, as of those that share the host's memory
    free: int
    driver: str

    def __str__(self) -> str:
        size = f"{self.total >> 30} GiB" if self.total else "memory not told"
        return f"{self.name}, {size}, driver {self.driver}"


def read_gpus() -> tuple[Gpu, ...]:
    """Those of this machine or container, also if CUDA_VISIBLE_DEVICES hides them."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    found = []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            found.append(Gpu(_text(pynvml.nvmlDeviceGetName(device)), *_memory(device), driver))
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return tuple(found)


def _memory(device: Any) -> tuple[int, int]:
    """In all, and free."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    except pynvml.NVMLError:
        return 0, 0
    return int(memory.total), int(memory.free)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
