"""The GPUs that NVIDIA's driver shows, without torch."""

import contextlib
from dataclasses import dataclass

from ray._private.thirdparty import pynvml


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    total: int  # bytes
    free: int
    driver: str

    def __str__(self) -> str:
        return f"{self.name}, {self.total >> 30} GiB, driver {self.driver}"


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
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            found.append(Gpu(_text(pynvml.nvmlDeviceGetName(device)), memory.total, memory.free, driver))
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return tuple(found)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
