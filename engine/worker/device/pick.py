"""The device that a configuration asks for."""

from engine.errors import InvalidConfig
from engine.worker.device.cpu import CpuDevice
from engine.worker.device.cuda import find_gpu
from engine.worker.device.device import Device


def pick_device(name: str) -> Device:
    """name: "auto" for a GPU where there is one, "cpu" or "cuda". Raises InvalidConfig if there is
    none of that name.
    """
    gpu = None if name == "cpu" else find_gpu()
    if name == "cuda" and gpu is None:
        raise InvalidConfig("device=cuda, but no CUDA device can be seen here; device=cpu would work")
    return gpu or CpuDevice()
