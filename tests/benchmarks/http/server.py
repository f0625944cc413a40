"""A server in processes of its own: Squadron's, or vLLM's where it is installed."""

import contextlib
import importlib.util
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from urllib.error import URLError

from cluster.sockets import LOOPBACK

DTYPE = "bfloat16"
START_SECONDS = 300.0
STOP_SECONDS = 60.0


def has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None


@contextlib.contextmanager
def squadron(folder: str, port: int, options: Sequence[str]) -> Iterator[int]:
    """`squadron serve`, ready, on the port; its process id. What it says is printed."""
    command = [sys.executable, "-m", "cluster.cli", "serve", folder, "--port", str(port), "--dtype", DTYPE, *options]
    with _running(command) as process:
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
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--host", LOOPBACK]
    command += ["--port", str(port), "--dtype", DTYPE, "--max-num-seqs", str(num_streams), "--no-enable-log-requests"]
    with _running(command) as process:
        deadline = time.monotonic() + START_SECONDS
        while not _is_healthy(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ChildProcessError("vLLM's server did not start")
            time.sleep(0.5)
        yield process.pid


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
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
