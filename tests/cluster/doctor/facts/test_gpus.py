"""GPUs as NVIDIA's library shows them, here one in its place."""

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.doctor.facts import gpus
from cluster.doctor.facts.gpus import Gpu, read_gpus


class NVMLError(Exception):
    """Of any call."""


class Driver:
    """`pynvml` of a machine with two GPUs, one of which shares the host's memory."""

    NVMLError = NVMLError
    ended = 0

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None:
        self.ended += 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.1"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, device: int) -> str:
        return ("H100", "GB10")[device]

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:
        if device == 1:
            raise NVMLError("Not Supported")
        return SimpleNamespace(total=80 << 30, free=79 << 30)


def test_one_that_does_not_tell_its_memory_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(gpus, "pynvml", driver)
    assert read_gpus() == (Gpu("H100", 80 << 30, 79 << 30, "580.1"), Gpu("GB10", 0, 0, "580.1"))
    assert driver.ended == 1
