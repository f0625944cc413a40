"""Pinned memory of exactly the size asked for: CUDA's part is recorded, or refused, since there is
none here.
"""

import ctypes
import gc
import mmap

import pytest
import torch

from engine.worker.cache.kv_cache import CacheShape, make_cache
from engine.worker.device.pick import pick_device
from engine.worker.device.pinned import pinned_zeros


class Recorder:
    """Keeps what is registered, and looks at it when it is told to let go."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.registered: dict[int, int] = {}  # bytes by address
        self.first_bytes: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if not self.error:
            self.registered[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        self.first_bytes.append(ctypes.c_ubyte.from_address(address).value)  # the pages must still be there
        return 0


def test_pages_are_pinned_for_as_long_as_a_tensor_lies_in_them() -> None:
    runtime = Recorder()
    memory = pinned_zeros(3 * 4096 + 8, runtime)
    assert runtime.registered == {memory.data_ptr(): 3 * 4096 + 8}
    assert memory.data_ptr() % mmap.PAGESIZE == 0
    assert not memory.any()
    part = memory[:4].view(torch.int32)
    part.fill_(7)
    del memory
    gc.collect()
    assert runtime.registered, "part of it is in use"
    del part
    gc.collect()
    assert (runtime.registered, runtime.first_bytes) == ({}, [7])


def test_the_log_says_where_pages_cannot_be_pinned(caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        assert pinned_zeros(4096, Recorder(error=801)).is_pinned()
    else:
        with pytest.raises(RuntimeError):  # torch's own allocator needs CUDA too
            pinned_zeros(4096, Recorder(error=801))
    assert caplog.messages == [
        "cudaHostRegister pins no memory here (error 801): torch's allocator does, of more bytes"
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_gpus_host_cache_is_pinned(dtype: torch.dtype) -> None:
    cache = make_cache(CacheShape(3, 2, 64, dtype), 2, 5, pick_device("cuda"))
    for layer in cache.host:
        for tensor in layer:
            assert tensor.shape == (5, 2, 16, 64)
            assert tensor.is_pinned()
            assert tensor.is_contiguous()
