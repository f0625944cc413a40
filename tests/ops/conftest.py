"""Every test here runs on each backend in BACKENDS, with memory that nobody has written to filled
with NaN.

With TRITON_INTERPRET=1 that is the Triton backend alone, interpreted (`tests.ops.test_interpreted`
runs such a process).
"""

import importlib
import os
from collections.abc import Iterator
from typing import cast

import pytest
import torch
from torch.utils import deterministic

import ops as backends
from ops.interface import Ops

BACKENDS = [("reference", "cpu"), ("cpu", "cpu")]
if torch.cuda.is_available():
    BACKENDS += [pytest.param((name, "cuda"), marks=pytest.mark.gpu) for name in ("reference", "triton")]
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if IS_INTERPRETED:
    importlib.import_module("tests.ops.kernels.interpreter")
    BACKENDS = [("triton", "cpu")]


@pytest.fixture(params=BACKENDS, ids=lambda param: "-".join(param))
def backend(request: pytest.FixtureRequest) -> tuple[Ops, torch.device]:
    name, device = request.param
    if IS_INTERPRETED:
        return cast(Ops, importlib.import_module("ops.kernels")), torch.device(device)
    if (reason := backends.unavailable_reason(name, torch.device(device))) is not None:
        pytest.skip(reason)
    if name == "cpu" and request.node.callspec.params.get("dtype") == torch.float16:
        pytest.skip("the cpu backend refuses float16")
    return backends.select(name, torch.device(device)), torch.device(device)


@pytest.fixture
def ops(backend: tuple[Ops, torch.device]) -> Ops:
    return backend[0]


@pytest.fixture
def device(backend: tuple[Ops, torch.device]) -> torch.device:
    return backend[1]


@pytest.fixture(autouse=True)
def surroundings() -> Iterator[None]:
    """torch.empty gives NaN (or the largest integer); random numbers are the same each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True
    with torch.inference_mode():
        yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
