"""Long prompts are computed on one node and answered on another, with the same bits; blocks go over
TCP, or by NIXL. The nodes are on one machine, and each engine has a folder of its own.
"""

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from ray import serve

from cluster.launch.app import APP_NAME, build_app
from cluster.launch.config import engines
from cluster.sockets import LOOPBACK
from engine.config import EngineConfig
from engine.offload.block_files import Folder
from engine.offload.peers.wire import MAGIC
from tests.cluster.several_nodes import several_nodes
from tests.end_to_end.apps.test_prefill import NUM_PROMPTS, PREFILL, ask_all, check_plain, figure, num_prefills, prompts
from tests.end_to_end.chaos.app import App, app_args
from tests.end_to_end.chaos.processes import find
from tests.end_to_end.conftest import free_port
from tests.end_to_end.test_replica_lost import wait_until
from tests.engine.support.nixl import needs_nixl
from tests.listeners import Listener, listeners_of

# Ray's own: `Cluster` leaves sockets open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SECONDS = 300.0
TWO_RANKS = {"tensor_parallel_size": 2, "num_spare_workers": 0}
SIDE = "side"  # a label of Ray's nodes


@pytest.fixture(scope="module")
def paths() -> list[str]:
    """Of the folders: of who computes, and of who answers."""
    return []


@pytest.fixture(scope="module", params=["tcp", pytest.param("nixl", marks=needs_nixl)])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def app(paths: list[str], transport: str) -> Iterator[App]:
    def divided(engine: EngineConfig, memory: float, token: str) -> tuple[EngineConfig, EngineConfig]:
        answering, computing = whole(engine, memory, token)
        paths[:] = [str(computing.kv_offloading_path), f"{computing.kv_offloading_path}-other"]
        answers = {"kv_offloading_path": paths[1], "node_labels": {SIDE: "answers"}}
        return answering.model_copy(update=answers), computing.model_copy(update={"node_labels": {SIDE: "computes"}})

    whole, port = engines.divided, free_port()
    nodes = [{"num_cpus": 2}, *({"num_cpus": 2, "labels": {SIDE: side}} for side in ("answers", "computes"))]
    with several_nodes(nodes) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "divided", divided)
        prefill = {"num_prefill_engines": 1, "prefill_min_tokens": 200, "prefill_transport": transport}
        args = app_args(TWO_RANKS, recovers=True, **prefill)
        serve.start(proxy_location="HeadOnly", http_options={"host": LOOPBACK, "port": port})
        try:
            serve.run(build_app(args), name=APP_NAME, route_prefix="/")
            app = App(f"http://{LOOPBACK}:{port}", args, cluster)
            wait_until(lambda: figure(app, "squadron:prefill_engines") == 1, "a gateway knows no prefill engine")
            yield app
        finally:
            serve.shutdown()


@pytest.fixture
def client(app: App) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        yield client


@pytest.mark.long
def test_answers_are_the_same_with_blocks_of_another_node(
    app: App, client: openai.OpenAI, paths: list[str], transport: str
) -> None:
    told_of = httpx.get(f"{app.url}/debug/engines", timeout=SECONDS).json()["engines"]
    assert sorted((each["computes_prompts"], each["blocks_at"] is not None) for each in told_of) == [
        (False, False),
        (True, True),
    ]
    assert len({each["node"] for each in told_of}) == 2
    asked = prompts("first")
    told = ask_all(client, asked)
    assert num_prefills(app, "computed") == NUM_PROMPTS
    assert all(cached >= num_tokens - 32 > 200 for _, num_tokens, cached in told)
    assert figure(app, "squadron:offload_missed_blocks_total") == 0
    assert list(Folder(paths[0]).files()) and not list(Folder(paths[1]).files()), "they have no folder in common"
    check_plain(client, asked, told)
    (used,) = [by for by in ("tcp", "nixl", "nixl_failed") if num_served(app, by)]
    assert used == transport and num_served(app, used) > NUM_PROMPTS

    (pid,) = find(PREFILL)
    os.kill(pid, signal.SIGKILL)  # with the folder, its blocks, and who serves them
    asked = prompts("second")
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(ask_all, client, asked)
        check_plain(client, asked, asking.result(SECONDS))
    wait_until(lambda: figure(app, "squadron:prefill_engines") == 1, "there is no prefill engine again")
    num_computed = num_prefills(app, "computed")
    asked = prompts("third")
    told = ask_all(client, asked)
    check_plain(client, asked, told)
    assert num_prefills(app, "computed") == num_computed + NUM_PROMPTS
    assert all(cached > 200 for _, _, cached in told), "from the new one's address"


def num_served(app: App, by: str) -> float:
    return figure(app, "squadron:prefill_served_blocks_total", f'transport="{by}"')


@pytest.mark.long
def test_who_serves_blocks_listens_on_the_nodes_address_alone(app: App) -> None:
    (pid,) = find(PREFILL)
    (greeting,) = [each for each in listeners_of(pid) if greets(each)]
    assert greeting.host not in ("::", "0.0.0.0")


def greets(listener: Listener) -> bool:
    """Whether it serves blocks: Serve's own gRPC port, which every replica has, does not."""
    host = LOOPBACK if listener.host in ("::", "0.0.0.0") else listener.host
    with socket.create_connection((host, listener.port), SECONDS) as stream:
        stream.settimeout(1)
        try:
            return stream.recv(len(MAGIC)) == MAGIC
        except OSError:
            return False
