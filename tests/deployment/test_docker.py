"""The Dockerfile: what it copies is there and is sent, what it installs is pinned, who runs it.
With a Docker daemon, it is built and the demo is run.
"""

import fnmatch
import re
import shutil
import subprocess
import tomllib

import pytest

from cluster.launch.packages import ROOT

TEXT = (ROOT / "Dockerfile").read_text()
# One instruction in a line, without comments.
INSTRUCTIONS = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
STAGES = ("cpu", "cuda")


def stage(name: str) -> list[str]:
    """Its instructions, and those of the stages it is made of."""
    begin = next(number for number, line in enumerate(INSTRUCTIONS) if re.match(rf"FROM \S+ AS {name}$", line))
    own = [line for line in INSTRUCTIONS[begin + 1 :] if line]
    ends = [number for number, line in enumerate(own) if line.startswith("FROM ")]
    own = own[: ends[0]] if ends else own
    below = INSTRUCTIONS[begin].split()[1]
    return [*(stage(below) if not below.startswith("python:") else []), *own]


def is_sent(name: str) -> bool:
    """Whether .dockerignore lets a file or folder of the root through."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    is_ignored = False
    for line in (line for line in lines if line and not line.startswith("#")):
        if fnmatch.fnmatch(name, line.removeprefix("!")):
            is_ignored = not line.startswith("!")
    return not is_ignored


def test_what_is_copied_is_there_and_is_sent() -> None:
    copied = [
        source
        for line in INSTRUCTIONS
        if line.startswith("COPY ") and "--from" not in line
        for source in [word for word in line.split()[1:-1] if not word.startswith("--")]
    ]
    assert {"cluster", "engine", "ops", "parallel", "configs", "constraints.txt"} <= set(copied)
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert [source for source in copied if not is_sent(source.split("/")[0])] == []
    assert not is_sent(".git") and not is_sent(".venv") and not is_sent("tests")


@pytest.mark.parametrize("name", STAGES)
def test_all_that_is_installed_is_pinned(name: str) -> None:
    installing = [line for line in stage(name) if "pip install" in line]
    assert len(installing) == 2
    assert all("--constraint /opt/squadron/constraints.txt" in line for line in installing)
    extras = re.search(r"\[([a-z0-9,-]+)\]", installing[-1])
    assert extras is not None
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[1].split(",")) <= known.keys()


@pytest.mark.parametrize("name", STAGES)
def test_it_is_checked_and_does_not_run_as_root(name: str) -> None:
    instructions = stage(name)
    assert [line for line in instructions if line.startswith("USER ")][-1] == "USER squadron"
    assert any(line.startswith("HEALTHCHECK ") and "/health" in line for line in instructions)
    assert instructions[-1] == 'CMD ["squadron", "demo"]'


def test_its_python_is_one_that_we_support() -> None:
    found = re.search(r"^ARG PYTHON_VERSION=3\.(\d+)\.\d+$", TEXT, re.MULTILINE)
    assert found is not None and found[1] in ("11", "12")


@pytest.mark.long
def test_the_demo_runs_in_the_image() -> None:
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, timeout=60).returncode:
        pytest.skip("no Docker daemon answers")
    build = ["docker", "build", "--target", "cpu", "--tag", "squadron-test:cpu", str(ROOT)]
    subprocess.run(build, check=True, timeout=3000)
    run = ["docker", "run", "--rm", "--shm-size", "1g", "squadron-test:cpu", "squadron", "demo", "--once"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Squadron makes three promises. It is exact" in done.stdout
