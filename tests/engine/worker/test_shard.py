"""What a rank says of itself."""

import os

import pytest

from engine.config import EngineConfig
from engine.worker.worker import Worker
from ops import cpu
from tests.engine.worker.on_demo import MODEL


def test_report_names_device_dtype_backend_exactness_and_threads(loaded: Worker) -> None:
    num_threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert loaded.report.startswith("cpu, float32, layers 0-3, ops backend reference (not exact")
    assert f", {num_threads} thread" in loaded.report


@pytest.mark.skipif(cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason()))
def test_a_worker_says_whether_it_uses_tapes() -> None:
    def report(**changes: object) -> str:
        return Worker(EngineConfig.create(model=MODEL, device="cpu", **changes)).report

    assert ", tapes for decode steps, " in report()
    assert ", no tapes (enforce_eager), " in report(enforce_eager=True)
    assert ", no tapes (the reference backend cannot be captured), " in report(ops_backend="reference")
