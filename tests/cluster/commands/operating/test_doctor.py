"""`squadron doctor` and `squadron collect-env` on a machine without a cluster."""

import os
import socket
import subprocess
import sys

import pytest

from cluster.cli import _parser
from cluster.commands.operating.doctor import _wanted
from cluster.launch.packages import ROOT
from engine.errors import InvalidConfig
from tests.end_to_end.test_command import SQUADRON

FILE = str(ROOT / "configs" / "serve" / "two-engines.yaml")


def squadron(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SQUADRON, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_good_machine_and_a_taken_port() -> None:
    """Ray is started for it, and ended: the collective is that of the ranks of the plan."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = squadron("doctor", "configs/demo", "-tp", "2", "--device", "cpu", "--port", str(port))
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert [line.split()[1] for line in lines if line.startswith("failure")] == ["http"]
    (failed,) = (number for number, line in enumerate(lines) if line.startswith("failure"))
    assert f"port {port} of 127.0.0.1 is taken by another program" in lines[failed]
    assert lines[failed + 1].strip() == "-> end it, or choose another port"
    assert any(line.startswith("ok      room        demo: 1 engine(s) of 2 rank(s)") for line in lines)
    assert any(line.startswith("ok      collective  2 ranks on 127.0.0.1: ") for line in lines)
    assert lines[-1].startswith("1 failure(s), ")


def test_what_cannot_be_is_refused_at_once() -> None:
    done = squadron("doctor", "configs/demo", "-tp", "3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("squadron doctor: tensor_parallel_size=3 does not divide")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["-tp", "4"], "tensor_parallel_size=4 is of no use without MODEL: no check would look at it"),
        (["--num-engines", "3"], "num_engines=3 is of no use without MODEL: no check would look at it"),
        (["configs/demo", "--config", FILE], f"model=configs/demo is of no use with {FILE}, whose applications"),
        (["--config", FILE, "--device", "cuda"], f"device=cuda is of no use with {FILE}, whose applications"),
    ],
)
def test_what_no_check_would_look_at_is_refused(given: list[str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        _wanted(_parser().parse_args(["doctor", *given]))


def test_collect_env_tells_versions_and_no_secrets() -> None:
    environment = os.environ | {"RAY_AUTH_TOKEN": "s3cret", "NCCL_DEBUG": "INFO"}
    command = [*SQUADRON, "collect-env"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python       {sys.version.split()[0]}\n" in done.stdout
    assert "RAY_AUTH_TOKEN=(not shown)\n" in done.stdout and "NCCL_DEBUG=INFO\n" in done.stdout
    assert "s3cret" not in done.stdout
