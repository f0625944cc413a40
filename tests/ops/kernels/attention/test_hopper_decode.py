"""Hopper's own decode kernel; on a GPU, what it computes is tested in test_paged.py."""

import subprocess
import sys

import pytest

pytest.importorskip("triton")
HIDDEN = """
import sys
sys.modules["triton.experimental.gluon"] = None
from ops.kernels.attention import paged
assert paged.hopper_decode is None
"""


def test_without_gluon_other_kernels_are_there() -> None:
    child = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr


def test_with_gluon_it_is_there() -> None:
    shown = HIDDEN.replace("is None", "is not None").replace('sys.modules["triton.experimental.gluon"] = None', "")
    assert subprocess.run([sys.executable, "-c", shown]).returncode == 0
