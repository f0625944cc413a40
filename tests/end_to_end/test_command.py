"""The `squadron` command as a user starts it: a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.end_to_end.conftest import DEMO, LOOPBACK, free_port

SQUADRON = [sys.executable, "-m", "cluster.cli"]
ROOT = DEMO.parents[1]
GONE_SECONDS = 20.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SQUADRON, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=180)


def test_generate_answers() -> None:
    done = run("generate", str(DEMO), "--prompt", "What is 17 + 25?", "--prompt", "What is 2 + 2?", "--device", "cpu")
    assert (done.returncode, done.stdout.splitlines()) == (0, ["42", "4"]), done.stderr


def test_demo_once() -> None:
    done = run("demo", "--once", "--port", str(free_port()))
    assert done.returncode == 0, done.stderr
    assert "Squadron makes three promises. It is exact" in done.stdout
    assert done.stderr == ""


def test_serve_says_why_the_engine_did_not_start(tmp_path: Path) -> None:
    for file in DEMO.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copyfile(file, tmp_path / file.name)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    done = run("serve", str(tmp_path), "--port", str(free_port()), "-tp", "2")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"squadron serve: {tmp_path}/model.safetensors cannot be read")


def test_serve_until_it_is_terminated(tmp_path: Path) -> None:
    port = free_port()
    command = [
        *SQUADRON,
        "serve",
        str(DEMO),
        "--port",
        str(port),
        "--api-key",
        "secret",
        "--served-model-name",
        "small",
    ]
    mark = f"SQUADRON_TEST={tmp_path}"  # which every process below inherits
    environment = os.environ | dict([mark.split("=", 1)])
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert any(line.startswith(f"Ready: http://{LOOPBACK}:{port}/v1") for line in process.stdout)
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{port}/v1/models", headers={"authorization": "Bearer secret"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["small"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
        assert process.stdout.read() == ""
        wait_until_gone(mark)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_until_gone(mark: str) -> None:
    """Wait for the end of every process that has `mark` in its environment."""
    deadline = time.monotonic() + GONE_SECONDS
    while left := [process for process in Path("/proc").glob("[0-9]*") if has_mark(process, mark)]:
        assert time.monotonic() < deadline, [(process / "cmdline").read_text() for process in left]


def has_mark(process: Path, mark: str) -> bool:
    try:
        return mark.encode() in (process / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
