"""A wheel has all that a machine without the repository needs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEPENDENCIES = os.pathsep.join(path for path in sys.path if path and not Path(path).resolve().is_relative_to(ROOT))


@pytest.mark.wheel
def test_the_demo_runs_from_a_wheel(tmp_path: Path) -> None:
    """Beside the dependencies that are here."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)], check=True, timeout=600)
    (wheel,) = tmp_path.glob("squadron_serve-*.whl")
    with zipfile.ZipFile(wheel) as files:
        page = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cluster" / "page" / "static").rglob("*.*")}
        assert page and page <= set(files.namelist())
    installed = tmp_path / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(installed), str(wheel)], check=True, timeout=120)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), DEPENDENCIES])}
    done = subprocess.run(
        [sys.executable, "-m", "cluster.cli", "demo", "--once"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Squadron makes three promises. It is exact" in done.stdout
