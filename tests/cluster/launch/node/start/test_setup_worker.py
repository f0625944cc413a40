"""The program that makes a process one of Ray's workers, with a small one in the worker's place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.launch.node.start.lean import SETUP_WORKER

WORKER = (
    "import json, os, sys; print(json.dumps([os.environ['WORD'], os.environ['KEPT'], sys.executable, sys.argv[1:]]))"
)
PLAIN = {"command_prefix": [], "py_executable": sys.executable, "override_worker_entrypoint": None, "java_jars": []}


def run(folder: Path, context: dict[str, object]) -> tuple[list[object], bool]:
    """What the worker says, and whether Ray was imported for it before."""
    worker = folder / "worker of Ray.py"
    worker.write_text(WORKER, encoding="utf-8")
    arguments = [
        str(worker),
        "--name=a 'b' $c",
        "--language=PYTHON",
        "--serialized-runtime-env-context=" + json.dumps(context),
    ]
    command = [sys.executable, "-X", "importtime", str(SETUP_WORKER), *arguments]
    done = subprocess.run(command, env=os.environ | {"KEPT": "yes"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), "ray._raylet" in done.stderr


def test_a_worker_gets_its_environment_without_ray(tmp_path: Path) -> None:
    said, has_ray = run(tmp_path, PLAIN | {"env_vars": {"WORD": 'it\'s "one" of\nthem'}})
    assert said == ['it\'s "one" of\nthem', "yes", sys.executable, ["--name=a 'b' $c"]]
    assert not has_ray


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"env_vars": {"WORD": "${KEPT}!"}}, "yes!"),
        ({"env_vars": {"WORD": "1"}, "command_prefix": ["WORD=2"]}, "2"),
        ({"env_vars": {"WORD": "1"}, "py_executable": f"env WORD=3 {sys.executable}"}, "3"),
    ],
)
def test_what_is_not_plain_is_for_ray_s_own_program(tmp_path: Path, change: dict[str, object], word: str) -> None:
    said, has_ray = run(tmp_path, PLAIN | change)
    assert said == [word, "yes", sys.executable, ["--name=a 'b' $c"]]
    assert has_ray
