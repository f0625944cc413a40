"""A wheel has all that a machine without the repository needs."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.wheel
def test_the_demo_runs_from_a_wheel(tmp_path: Path) -> None:
    """In an environment that has nothing else, with what pip brings."""
    pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
    make = [sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(make, check=True, timeout=1200)
    (wheel,) = tmp_path.glob("squadron_serve-*.whl")
    with zipfile.ZipFile(wheel) as files:
        page = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cluster" / "page" / "static").rglob("*.*")}
        assert page and page <= set(files.namelist())
    programs = tmp_path / "clean" / "bin"
    venv.create(programs.parent, with_pip=True)
    install = [programs / "python", *pip, "install", "--constraint", ROOT / "constraints.txt", wheel]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    subprocess.run(install, check=True, env=environment, timeout=900)
    demo = subprocess.run(
        [programs / "squadron", "demo", "--once"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (demo.returncode, demo.stderr) == (0, "")
    assert "Squadron makes three promises. It is exact" in demo.stdout
