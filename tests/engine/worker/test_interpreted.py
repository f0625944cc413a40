"""Whole steps on the Triton backend without a GPU, in a process whose kernels are interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent


def test_steps_interpreted() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "kernels"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, env=environment, cwd=HERE.parents[2], capture_output=True, text=True, timeout=900)
    assert child.returncode == 0, child.stdout[-10_000:] + child.stderr[-2_000:]
