"""All tests of the cpu backend again at each other level that this processor runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops import cpu
from ops.cpu import build

ROOT = Path(__file__).parents[3]
FOLDERS = ("attention", "matmul", "cpu/matmul", "cpu/logits")
OTHERS = (
    "cpu/test_exact",
    "test_activation",
    "test_norm",
    "test_qk_norm",
    "logits/test_logprobs",
    "logits/test_sampling",
)
# The first two have the best ones' instructions but for products of bfloat16 and of integers; the
# last one has none.
MARKS = dict.fromkeys(("avx512_vnni", "avx512", "portable"), pytest.mark.long)
FILES = [*(f"tests/ops/{folder}" for folder in FOLDERS), *(f"tests/ops/{name}.py" for name in OTHERS)]


@pytest.mark.skipif("SQUADRON_CPU_ISA" in os.environ, reason="a level was asked for by name")
@pytest.mark.skipif(cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason()))
@pytest.mark.parametrize(
    "level", [pytest.param(level, marks=MARKS.get(level, ())) for level in build.runnable_levels()[1:]]
)
def test_every_op_at(level: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not reference-cpu", *FILES],
        env={**os.environ, "SQUADRON_CPU_ISA": level, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-2000:]
    print(level, finished.stdout.splitlines()[-1])
