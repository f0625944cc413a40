"""The whole system, once for all tests here: Ray, Serve, a gateway, an engine and four workers, at
TP=2 × PP=2.
"""

import json
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.launch.app import build_app
from cluster.launch.ray_cluster import RayCluster, ray_cluster
from cluster.launch.serving import serving
from cluster.llm import LLM
from cluster.sockets import LOOPBACK
from engine.sampling_params import SamplingParams
from tests.adapters import demo_shapes, save_adapter
from tests.cluster.telemetry.receiver import Receiver, receiving
from tests.engine.support.able import able_tokenizer
from tests.lanes import kind

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"
ENGINE = {
    "model": str(DEMO),
    "tokenizer": able_tokenizer(),
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "device": "cpu",
    "kv_cache_memory_bytes": 32 << 20,
}


@dataclass(frozen=True, slots=True)
class Server:
    port: int
    ray: RayCluster
    handle: DeploymentHandle[Any]
    args: dict[str, Any]  # of `build_app`
    receiver: Receiver  # of its spans
    clients: ExitStack  # closed when it ends: else the collector finds their connections, in some other test

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def client(self, **options: Any) -> openai.OpenAI:
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)
        return self.clients.enter_context(client)

    def stats(self) -> dict[str, Any]:
        """The engine's `EngineStats`."""
        return serve.get_deployment_handle("EngineDeployment", "squadron").stats.remote().result()


def free_port() -> int:
    """Between the ports of Ray's workers (to 19999) and those that Linux gives to outgoing
    connections (from 32768): none of these takes it before the server under test has bound it.
    """
    for port in random.sample(range(20_000, 32_768), 100):
        try:
            socket.create_server(("", port)).close()
        except OSError:
            continue
        return port
    raise OSError("None of 100 ports between 20000 and 32767 is free")


@contextmanager
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a receiver of its spans, a folder for files and batches, and an adapter, harbour, in a
    folder from which others may be loaded.
    """
    port = free_port()
    # Room for a second engine: one that is told to end serves until the next one is ready.
    with receiving() as receiver, ray_cluster(num_workers=12) as ray, ExitStack() as clients:
        args: dict[str, Any] = {
            "engine": ENGINE | {"enable_lora": True},
            "otlp_traces_endpoint": receiver.url,
            "collect_detailed_traces": "all",
        }
        args["files_path"] = str(tmp_path_factory.mktemp("files"))
        adapters = tmp_path_factory.mktemp("adapters")
        harbour = save_adapter(adapters / "harbour", demo_shapes(), rank=8, seed=1)
        args |= {"lora_modules": [f"harbour={harbour.folder}"], "lora_roots": [str(adapters)]}
        with serving(build_app(args), host=LOOPBACK, port=port) as running:
            yield Server(port, ray, running.gateways, args, receiver, clients)


RUNNING = pytest.StashKey[tuple[Server, ExitStack]]()  # the shared server, and what ends it


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """One of many files: see `end_server`."""
    stash = request.config.stash
    if RUNNING not in stash:
        stack = ExitStack()
        stash[RUNNING] = (stack.enter_context(shared_server(tmp_path_factory)), stack)
    return stash[RUNNING][0]


def end_server(config: pytest.Config) -> None:
    """Before the first file that does not need it: doing nothing it takes an eighth of a core."""
    if RUNNING in config.stash:
        _, stack = config.stash[RUNNING]
        del config.stash[RUNNING]
        stack.close()


@pytest.hookimpl(trylast=True)  # after fixtures that use it
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or kind(nextitem.nodeid.partition("::")[0]) != "server":
        end_server(item.config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    end_server(session.config)


class Reference:
    """Greedy answers of one rank in this process."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def chat(self, question: str, max_tokens: int) -> tuple[str, str]:
        """The answer and its finish_reason."""
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        (output,) = self._llm.chat([{"role": "user", "content": question}], params, use_tqdm=False)
        assert output.outputs[0].finish_reason is not None
        return output.outputs[0].text, output.outputs[0].finish_reason


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    with LLM(**(ENGINE | {"tensor_parallel_size": 1, "pipeline_parallel_size": 1})) as llm:
        yield Reference(llm)


@pytest.fixture(scope="session")
def questions() -> list[str]:
    """Questions that the demo checkpoint was not trained on, of every kind."""
    records = [json.loads(line) for line in (DEMO / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    by_task: dict[str, list[str]] = {}
    for record in records:
        if "tools" not in record:
            by_task.setdefault(record["task"], []).append(record["messages"][-1]["content"])
    return [questions[0] for questions in by_task.values()] + [questions[1] for questions in by_task.values()]
