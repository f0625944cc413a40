"""The command line: every option reaches the configuration, and every mistake is one line and
status 2.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli import COMMANDS, main
from cluster.version import VERSION
from engine.checkpoint.manifest import MANIFEST_FILE
from tests.cluster.commands.failing import fails
from tests.corruptions import copy_demo

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "configs" / "demo"


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["plan"], ["serve"], ["generate", "--prompt", "hello"]):
        line = fails(capsys, *command, "/nowhere")
        assert line == (
            f"squadron {command[0]}: /nowhere/config.json does not exist; a model is a folder in Hugging Face layout"
        )


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("m.gguf", b"GGUF\3\0\0\0", "{file} is a GGUF file, which is not served; get the checkpoint it was made of"),
        ("model.safetensors", b"", "{file} is a file of a model; name its folder, {file.parent}"),
        ("notes.txt", b"hello", "{file} is a file; a model is a folder in Hugging Face layout, with config.json"),
    ],
)
def test_a_model_that_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, line: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    for command in (["plan"], ["serve"], ["checkpoint", "verify"], ["checkpoint", "manifest"], ["bench", "latency"]):
        said = fails(capsys, *command, str(file))
        assert said.startswith(f"squadron {command[0]}: " + line.format(file=file))


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").mkdir()
    assert fails(capsys, "plan", str(tmp_path)).endswith(f"{tmp_path}/config.json cannot be read: Is a directory")


def test_a_manifest_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_demo(tmp_path / "model")
    (tmp_path / "model" / MANIFEST_FILE).mkdir()
    line = fails(capsys, "plan", str(tmp_path / "model"))
    assert line == f"squadron plan: {tmp_path}/model/{MANIFEST_FILE}: Is a directory"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert (stopped.value.code, capsys.readouterr().out) == (0, f"squadron {VERSION}\n")


def test_help_and_clients_do_not_wait_for_ray_or_torch() -> None:
    """Which take seconds to import."""
    code = """import sys; from cluster.cli import _parser
print(_parser().format_help(), _parser().parse_args(["trace"]).run)
print(sorted({"ray", "torch", "transformers"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(f"\n    {name}" in done.stdout and text[:20] in done.stdout for name, (_, text) in COMMANDS.items())
    assert done.stdout.endswith("\n[]\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_options(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    assert re.match(rf"usage: squadron {name} \[-h\]\s+[\[A-Z-]", capsys.readouterr().out)


def heed_interrupts() -> None:
    """What a shell starts in the background ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_command_has_not_succeeded(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """A server has, if it gets SIGTERM: tests/end_to_end/test_command.py."""
    config = tmp_path / "config.yaml"
    os.mkfifo(config)
    command = [sys.executable, "-m", "cluster.cli", "generate", "--prompt", "hello", "--config", str(config)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, preexec_fn=heed_interrupts)
    with config.open("w"):  # when the command reads it
        process.send_signal(number)
    # Its end of the pipe ends, too: a signal that came just before the call that waits for
    # more is heeded after it.
    _, erred = process.communicate(timeout=60)
    assert (process.returncode, erred) == (status, b"")


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def run_into(stdout: int, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "cluster.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, env=BUFFERED | environment, stdout=stdout, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("arguments", "status"), [(["plan", str(DEMO)], 141), (["collect-env"], 141), (["trace", "--help"], 0)]
)
def test_output_that_nobody_reads_any_more(arguments: list[str], status: int) -> None:
    """As behind `| head`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_into(writer, *arguments)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (status, b"")


def test_output_to_a_disk_that_is_full() -> None:
    with open("/dev/full", "wb") as full:
        done = run_into(full.fileno(), "collect-env")
    assert (done.returncode, done.stderr) == (2, b"squadron collect-env: OSError: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "\u00d7"), ("ascii", "\\xd7")])
def test_characters_that_the_terminal_has_not_are_escaped(tmp_path: Path, encoding: str, shown: str) -> None:
    """And what is no text at all, as names of files that have another encoding than UTF-8."""
    done = run_into(subprocess.PIPE, "plan", str(DEMO), PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"ranks                 1 (TP=1 {shown} PP=1)\n" in done.stdout.decode()
    folder = copy_demo(tmp_path / os.fsdecode(b"\xe9"))
    done = run_into(subprocess.PIPE, "checkpoint", "manifest", str(folder), PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"{tmp_path}/\\udce9/{MANIFEST_FILE}: " in done.stdout.decode()


def test_a_trace_to_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (str(tmp_path), "."):
        assert fails(capsys, "trace", "--output", folder) == (
            f"squadron trace: output={folder} is a folder; name a file"
        )
