"""A device's errors: what to do when its memory runs out, and which say that it has failed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import InvalidConfig

TRITON = "Triton Error [CUDA]: "  # its launcher raises RuntimeError, which begins so


@contextmanager
def out_of_memory_advice(when: str, advice: str) -> Iterator[None]:
    """Turn the device's running out of memory into an InvalidConfig that says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InvalidConfig(f"out of GPU memory while {when}: {advice} ({str(error).splitlines()[0]})") from None


def has_failed(error: Exception) -> bool:
    """Whether the error, of torch or of Triton's launcher, is a device's; of memory that ran out it
    is not.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, torch.AcceleratorError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and text.startswith(TRITON) and "out of memory" not in text
