"""That our packages are ours."""

import subprocess
import sys
from pathlib import Path

from cluster.launch.packages import ROOT, check_packages


def test_the_packages_are_ours() -> None:
    check_packages()


def test_refuses_packages_of_the_same_name(tmp_path: Path) -> None:
    """Another `ops` that comes first on the path."""
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "__init__.py").touch()
    checked = "sys.path.insert(0, sys.argv[1]); check_packages()"
    program = f"import sys; from cluster.launch.packages import check_packages; {checked}"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert f"package 'ops' is found in {tmp_path}/ops/__init__.py, not in {ROOT}" in done.stderr
