"""Where the tests of the kernels run: interpreted on the CPU if TRITON_INTERPRET=1, else on a GPU,
and else not at all.
"""

import os
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

Test = TypeVar("Test", bound=Callable[..., None])

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
MARKS = [] if IS_INTERPRETED else [pytest.mark.gpu]
SLOW = [pytest.mark.long] if IS_INTERPRETED else []  # of what takes the interpreter long


def slow(test: Test) -> Test:
    return pytest.mark.long(test) if IS_INTERPRETED else test
