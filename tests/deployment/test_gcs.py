"""The head's GCS is killed under load, and its keeper starts it again: nothing fails, and new
processes can be started afterwards.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import ray
from ray import serve

from cluster.launch.app import build_app
from cluster.launch.node.gcs_keeper import gcs_at
from cluster.launch.packages import ROOT
from cluster.launch.serving import serving
from cluster.sockets import LOOPBACK
from tests.cluster.several_nodes import several_nodes
from tests.end_to_end.chaos.processes import find
from tests.end_to_end.conftest import free_port

# Ray's own: `Cluster` leaves sockets open.
pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.long]

LONG = {"ignore_eos": True}
STREAMS = 12
KILLS = 2
ENGINE = {
    "model": "configs/demo",
    "device": "cpu",
    "tensor_parallel_size": 2,
    "kv_cache_memory_bytes": 32 << 20,
    "num_threads": 1,
    "num_spare_workers": 0,
}


@pytest.fixture
def redis() -> Iterator[str]:
    """The address of one that keeps nothing on disk."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server is here: apt-get install redis-server")
    port = free_port()
    command = [program, "--port", str(port), "--bind", LOOPBACK, "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert any("Ready to accept connections" in line for line in server.stdout)
        reading = threading.Thread(target=server.stdout.read)  # what it tells later, so that it never waits
        reading.start()
        yield f"{LOOPBACK}:{port}"
        server.kill()
        reading.join()


@pytest.fixture(params=["rocksdb", "redis"])
def gcs_port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Of a cluster whose GCS stores what it knows, with its keeper."""
    port, storage = free_port(), {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(tmp_path / "gcs")}
    if request.param == "redis":
        storage = {"RAY_REDIS_ADDRESS": request.getfixturevalue("redis")}
    with several_nodes([{"num_cpus": 4, "gcs_server_port": port}], **storage):
        command = [sys.executable, "-m", "cluster.launch.node.gcs_keeper", "--port", str(port)]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as keeper:
            try:
                assert keeper.stderr is not None
                assert "watching the GCS" in keeper.stderr.readline()
                yield port
            finally:
                keeper.kill()
                os.kill(gcs_at(port), signal.SIGKILL)  # the keeper's, which nobody else ends


def ask(client: openai.OpenAI, number: int, begun: threading.Semaphore) -> str:
    """A streamed answer of many tokens; `begun` is released at the first."""
    text = ""
    stream = client.completions.create(
        model="demo", prompt=f"Count from {number} ", max_tokens=300, seed=number, stream=True, extra_body=LONG
    )
    for chunk in stream:
        if not text:
            begun.release()
        text += chunk.choices[0].text
    return text


def test_nothing_fails_and_new_processes_start(gcs_port: int) -> None:
    port = free_port()
    with (
        serving(build_app({"engine": ENGINE}), host=LOOPBACK, port=port, ingress="proxy"),
        openai.OpenAI(base_url=f"http://{LOOPBACK}:{port}/v1", api_key="none", max_retries=0, timeout=300) as client,
        ThreadPoolExecutor(STREAMS) as threads,
    ):

        def all_streams() -> tuple[list[Future[str]], threading.Semaphore]:
            begun = threading.Semaphore(0)
            return [threads.submit(ask, client, number, begun) for number in range(STREAMS)], begun

        expected = [stream.result() for stream in all_streams()[0]]
        for _ in range(KILLS):
            killed = gcs_at(gcs_port)
            streams, begun = all_streams()
            for _ in range(STREAMS):
                begun.acquire()
            os.kill(killed, signal.SIGKILL)
            assert [stream.result() for stream in streams] == expected
            # Ray answers again, and starts processes, of tasks and of actors.
            assert ray.get(ray.remote(lambda: "new").options(num_cpus=0).remote(), timeout=120) == "new"
            assert gcs_at(gcs_port) != killed
            os.kill(find("ray::WorkerActor")[0], signal.SIGKILL)
            assert ask(client, 3, begun) == expected[3]
        assert serve.status().applications["squadron"].status == "RUNNING"
        assert all(text for text in expected)
