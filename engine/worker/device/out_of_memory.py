"""What to do when the device's memory runs out."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import InvalidConfig


@contextmanager
def out_of_memory_advice(when: str, advice: str) -> Iterator[None]:
    """Turn the device's running out of memory into an InvalidConfig that says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InvalidConfig(f"out of GPU memory while {when}: {advice} ({str(error).splitlines()[0]})") from None
