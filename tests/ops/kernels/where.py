"""Where the tests of the kernels run: interpreted on the CPU if TRITON_INTERPRET=1, else on a GPU,
and else not at all.
"""

import os

import pytest
import torch

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
MARKS = [] if IS_INTERPRETED else [pytest.mark.gpu]
