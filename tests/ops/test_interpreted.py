"""The Triton backend without a GPU: its tests, and those of every backend, run in a process whose
kernels are interpreted.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent
OTHERS = ("interpreted", "philox", "sampling", "types")  # not of every backend, or minutes (that in kernels/logits is)
FOLDERS = (HERE, HERE / "attention", HERE / "matmul", HERE / "logits")
TESTS = {path for folder in FOLDERS for path in folder.glob("test_*.py")}
FILES = sorted(path for path in TESTS if path.stem.removeprefix("test_") not in OTHERS)
COMPILED = ("test_compiled", "test_machine_code")  # what the compiler makes, with no interpreter


@pytest.mark.timeout(2700)  # of a slow machine with other work, by the clock
@pytest.mark.parametrize(
    "which", ["not gpu and not long", pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(7200)])]
)
def test_kernels_interpreted(which: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, *FILES]
    command += [HERE / "kernels", *(f"--ignore={HERE}/kernels/{name}.py" for name in COMPILED)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True)
    assert child.returncode == 0, child.stdout[-10_000:] + child.stderr[-2_000:]
