"""Whole steps on the Triton backend without a GPU, in a process whose kernels are interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent


@pytest.mark.timeout(2700)  # of a slow machine with other work, by the clock
@pytest.mark.parametrize(
    "which", ["not gpu and not long", pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(7200)])]
)
def test_steps_interpreted(which: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, HERE / "kernels"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, env=environment, cwd=HERE.parents[2], capture_output=True, text=True)
    assert child.returncode == 0, child.stdout[-10_000:] + child.stderr[-2_000:]
