"""A server in processes of its own: Squadron's, or vLLM's where it is installed."""

import contextlib
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import IO
from urllib.error import URLError

from cluster.sockets import LOOPBACK
from tests.benchmarks import vllm_peer

DTYPE = "bfloat16"
START_SECONDS = 300.0
STOP_SECONDS = 60.0


@contextlib.contextmanager
def squadron(folder: str, port: int, options: Sequence[str]) -> Iterator[int]:
    """`squadron serve`, ready, on the port; its process id. What it says is printed."""
    command = [sys.executable, "-m", "cluster.cli", "serve", folder, "--port", str(port), "--dtype", DTYPE, *options]
    with _running(command, subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print("  " + line.rstrip(), flush=True)
            if line.startswith("Ready"):
                break
        else:
            raise ChildProcessError("squadron serve ended before it was ready")
        yield process.pid


@contextlib.contextmanager
def vllm(folder: str, port: int, num_streams: int) -> Iterator[int]:
    """vLLM's own server, ready; its process id."""
    python = str(vllm_peer.FOLDER / "bin" / "python")
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--dtype", DTYPE]
    command += ["--host", LOOPBACK, "--port", str(port), "--max-num-seqs", str(num_streams)]
    command += ["--no-enable-log-requests", "--disable-uvicorn-access-log"]
    with vllm_peer.open_log() as log, _running(command, log, vllm_peer.environment()) as process:
        deadline = time.monotonic() + START_SECONDS
        while not _is_healthy(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ChildProcessError(f"vLLM's server did not start; {vllm_peer.LOG} has what it said")
            time.sleep(0.5)
        yield process.pid


@contextlib.contextmanager
def _running(
    command: Sequence[str], output: int | IO[str], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=output, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/health", timeout=1):
            return True
    except (URLError, OSError):
        return False
