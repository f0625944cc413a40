"""A GPU as a device."""

import pytest
import torch

from engine.worker.device.cuda import CudaDevice, find_gpu

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu() -> CudaDevice:
    found = find_gpu()
    assert found is not None
    return found


def test_memory_is_counted(gpu: CudaDevice) -> None:
    before = gpu.memory.allocated()
    assert gpu.memory.peak(lambda: gpu.zeros((1 << 20,), torch.uint8)) == 1 << 20
    assert gpu.memory.allocated() == before
    assert gpu.memory.reserved() >= 1 << 20
    gpu.memory.release()
    free, total = gpu.memory.free_and_total()
    assert 0 < free < total


def test_a_graph_reads_anew_and_an_event_is_behind_it(gpu: CudaDevice) -> None:
    x = gpu.zeros((4,), torch.float32)
    replay = gpu.capture()(lambda: x + 1)
    x.fill_(2)
    output = replay()
    gpu.record_event().synchronize()
    assert output.tolist() == [3] * 4


def test_work_beside_the_steps_is_waited_for_by_its_mark(gpu: CudaDevice) -> None:
    x = gpu.zeros((4,), torch.float32)
    side = gpu.side_stream()
    side.wait(side.launch(lambda: x.add_(1)))
    x.mul_(3)
    gpu.synchronize()
    assert x.tolist() == [3] * 4
