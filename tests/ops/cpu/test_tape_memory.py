"""Memory is given on once nothing refers to it, and not before."""

import torch

from ops.cpu.tape_memory import TapeMemory


def test_memory_is_given_on_once_no_view_is_left() -> None:
    memory = TapeMemory()
    first = memory.empty(torch.Size((3, 5)), torch.bfloat16)
    address, view = first.data_ptr(), first[1:].view(-1)
    assert first.shape == (3, 5) and first.dtype == torch.bfloat16 and first.is_contiguous() and address % 64 == 0
    del first
    second = memory.empty(torch.Size((3, 5)), torch.bfloat16)
    assert second.data_ptr() != address
    del view
    third = memory.empty(torch.Size((7,)), torch.float32)  # 28 of 64 bytes
    assert third.data_ptr() == address


def test_what_is_free_is_counted_and_nothing_else() -> None:
    memory = TapeMemory()
    held = memory.empty(torch.Size((1000,)), torch.float32)
    assert memory.num_free_bytes == 0
    del held
    assert memory.num_free_bytes == 4096
    assert memory.empty(torch.Size((0, 4)), torch.float32).shape == (0, 4)
    assert memory.num_free_bytes == 4096
