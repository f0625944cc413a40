"""The formats' own packers as a process: what they need is not for ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKERS = Path(sys.prefix) / "packers"
MARKS = [
    pytest.mark.long,
    pytest.mark.skipif(not PACKERS.exists(), reason="no packers here: `make .venv/packers` installs them"),
]


def make_all(plain: str, folder: Path) -> None:
    """All of `made.NAMES`, each in its folder below this one, of a plain checkpoint of Qwen2."""
    command = [sys.executable, "-m", "tests.parallel.published.own", plain, str(folder)]
    paths = os.pathsep.join([str(PACKERS), os.getcwd()])
    # What they log and offload goes into the folder; to compile for one step is not worth it.
    given = {"PYTHONPATH": paths, "TMPDIR": str(folder), "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"}
    found = subprocess.run(command, env=os.environ | given, cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-4000:]
