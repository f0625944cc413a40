"""What launchers need to know about the device."""

from functools import cache

import torch

from ops import FLOAT8_CAPABILITY

# Triton's interpreter runs programs one after the other, on CPU tensors.
NUM_INTERPRETED_PROGRAMS = 3
HOPPER = 9  # H100 and H200, by the first number of their capability
RTX_50 = 12  # Blackwell without tensor memory: what its products read and write is in registers
INTERPRETED_CAPABILITY = (HOPPER, 0)
SHARED_KIB = {(8, 0): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}  # that a program may have; others have 99


@cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors: the unit of grids that fill the device."""
    if device.type == "cpu":
        return NUM_INTERPRETED_PROGRAMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """CUDA's compute capability: 8.0 is an A100, 9.0 an H100 or H200."""
    return INTERPRETED_CAPABILITY if device.type == "cpu" else torch.cuda.get_device_capability(device)


def shared_bytes(compute: tuple[int, int]) -> int:
    """Shared memory that a program may have on a device of that capability."""
    return SHARED_KIB.get(compute, 99) << 10


def check_float8(device: torch.device) -> None:
    """Raise ValueError unless kernels can convert float8_e4m3fn there."""
    if capability(device) < FLOAT8_CAPABILITY:
        raise ValueError("float8 needs a GPU of compute capability 8.9 or later")
