"""The host as a device."""

import mmap

import torch

from engine.worker.device.cpu import CpuDevice


def test_memory_is_zero_and_begins_at_a_page() -> None:
    device = CpuDevice()
    for tensor in (device.zeros((3, 5), torch.bfloat16), device.host_zeros(30)):
        assert tensor.data_ptr() % mmap.PAGESIZE == 0
        assert not tensor.any()
    assert device.zeros((3, 5), torch.bfloat16).shape == (3, 5)
    assert device.zeros((0, 5), torch.float32).shape == (0, 5)


def test_what_is_launched_beside_is_done() -> None:
    device, done = CpuDevice(), []
    side = device.side_stream()
    side.wait(side.launch(lambda: done.append(1)))
    device.record_event().synchronize()
    device.synchronize()
    assert done == [1]
