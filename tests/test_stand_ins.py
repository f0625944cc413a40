"""A machine with GPUs that has no ray and no pydantic: the tests for it are found there, and the
engine starts.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MISSING = ("fastapi", "msgspec", "ray", "uvicorn")
WORKERS = (
    "tests/engine/worker",
    "--ignore=tests/engine/worker/test_interpreted.py",
    "--ignore=tests/engine/worker/test_two_ranks.py",
)
STANDING_IN = ("pydantic", "pydantic_core")
# A pytest whose process is such a machine's: what it lacks is not found, whatever is installed.
PYTEST = f"""
import sys
from importlib.machinery import PathFinder

class Lacking:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in {MISSING}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return PathFinder.find_spec(name, ["tests/stand_ins"]) if name in {STANDING_IN} else None

sys.meta_path.insert(0, Lacking)
import pytest
sys.exit(pytest.main(["-c", "tests/gpu.ini", "--rootdir=.", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def run(*arguments: str) -> str:
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", PYTEST, *arguments]
    child = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert child.returncode == 0, child.stdout[-5_000:] + child.stderr[-2_000:]
    return child.stdout


def test_tests_for_gpus_are_found() -> None:
    assert "test_swaps_in_a_stream_of_their_own_leave_the_caches_as_swaps_at_once" in run("--collect-only")


def test_the_plug_ins_of_the_suite_are_no_error_where_they_are_installed() -> None:
    command = [sys.executable, "-m", "pytest", "-c", "tests/gpu.ini", "--rootdir=.", "-q", "-p", "no:cacheprovider"]
    child = subprocess.run(
        [*command, "--collect-only", "-m", "not gpu", "tests/ops/kernels/test_device.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stdout[-2_000:] + child.stderr[-2_000:]


@pytest.mark.long  # beside that they are found, for which each is imported
def test_workers_run() -> None:
    """Those tests of the engine's workers that need no ranks, no checked configuration and not more
    than half a minute: steps, graphs, caches and devices, and what a GPU would be asked.
    """
    found = run("-m", "not gpu and not long and not ray_up", *WORKERS)
    assert int(re.search(r"(\d+) passed", found)[1]) > 200
