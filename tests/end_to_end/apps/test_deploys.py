"""What `serve deploy` changes of an application that runs, and what stays."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from ray import serve
from ray.serve._private.api import _get_global_client
from ray.serve.schema import ServeDeploySchema

from cluster.ingress.choice import DEFAULT_WISH, listening
from cluster.launch.ray_cluster import ray_cluster
from cluster.launch.serve_calls import start_serve
from cluster.sockets import LOOPBACK
from tests.adapters import demo_shapes, save_adapter
from tests.documents.snippets import snippet
from tests.end_to_end.apps.test_autoscaling import ENGINE, LONG, QUESTIONS, SECONDS, ask, asking, engines, num_engines
from tests.end_to_end.conftest import free_port
from tests.end_to_end.test_replica_lost import wait_until
from tests.perturbed import save_perturbed

pytestmark = pytest.mark.long


@pytest.fixture
def url() -> Iterator[str]:
    """Where applications are to listen."""
    port = free_port()
    with ray_cluster(num_workers=6), listening(DEFAULT_WISH, LOOPBACK) as ingress:
        start_serve(ingress, port, "text")
        try:
            yield f"http://{LOOPBACK}:{port}"
        finally:
            serve.shutdown()


def deploy(num_engines: int = 1, **changed: Any) -> None:
    """The file of docs/cluster.md, with other numbers. `changed`: of the engine."""
    file = yaml.safe_load(snippet("docs/cluster.md", "num_replicas: 3").text)
    (application,) = file["applications"]
    application["args"]["engine"] |= ENGINE
    application["args"] |= changed.pop("args", {})
    application["args"]["engine"] |= changed
    application["deployments"] = [{"name": "EngineDeployment", "num_replicas": num_engines}]
    _get_global_client().deploy_apps(ServeDeploySchema(**file), _blocking=False)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=SECONDS).status_code == 200 and bool(engines(url))
    except httpx.TransportError:
        return False


def test_the_number_of_engines_is_changed_and_the_others_stay(url: str) -> None:
    deploy()
    wait_until(lambda: is_ready(url), "the application does not start")
    (first,) = engines(url)
    long = {question: ask(url, question, LONG) for question in QUESTIONS[:2]}
    deploy(2)
    wait_until(lambda: num_engines(url) == 2, "there are no two engines")
    assert first["replica"] in {each["replica"] for each in engines(url)}
    with asking(url, long, LONG) as answered:
        deploy(1)
        wait_until(lambda: num_engines(url) == 1, "there is not one engine again")
    assert set(answered) == set(long)


def test_what_was_loaded_and_updated_outlives_a_deploy_and_not_the_application(url: str, tmp_path: Path) -> None:
    args = {"lora_roots": [str(tmp_path)]}
    save_perturbed(tmp_path / "new")
    quay = save_adapter(tmp_path / "quay", demo_shapes(), seed=2)
    deploy(args=args, enable_lora=True)
    wait_until(lambda: is_ready(url), "the application does not start")
    own = completion(url, "demo")
    told = serve.get_app_handle("squadron").update_weights.remote({"path": str(tmp_path / "new"), "version": "new"})
    assert told.result(timeout_s=SECONDS)["error"] is None
    body = {"lora_name": "quay", "lora_path": quay.folder}
    assert httpx.post(f"{url}/v1/load_lora_adapter", json=body, timeout=SECONDS).status_code == 200
    expected = {model: completion(url, model) for model in ("demo", "quay")}
    assert len({own["text"], *(each["text"] for each in expected.values())}) == 3

    (before,) = engines(url)
    with repeating(lambda: [completion(url, model) for model in expected]) as answers:
        deploy(args=args, enable_lora=True, max_num_seqs=16)  # another engine, and another gateway
        wait_until(lambda: before["pid"] not in {each["pid"] for each in engines(url)}, "no engine was replaced")
        wait_until(lambda: num_engines(url) == 1, "the next engine does not come")
    assert answers and all(answer == list(expected.values()) for answer in answers)

    serve.delete("squadron")
    deploy(args=args, enable_lora=True)
    wait_until(lambda: is_ready(url), "the application does not start anew")
    models = httpx.get(f"{url}/v1/models", timeout=SECONDS).json()["data"]
    assert [model["id"] for model in models] == ["demo"]
    assert completion(url, "demo") == own


def completion(url: str, model: str) -> dict[str, Any]:
    """A text, and the version of the weights that it is of."""
    body = {"model": model, "prompt": QUESTIONS[0], "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=SECONDS)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return {"text": told["choices"][0]["text"], "version": told.get("weights_version")}


@contextmanager
def repeating(question: Callable[[], Any]) -> Iterator[list[Any]]:
    """What came, asked again and again while the context is open."""
    enough, answers = threading.Event(), list[Any]()

    def ask_again() -> None:
        while not enough.is_set():
            answers.append(question())

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_again)
        try:
            yield answers
        finally:
            enough.set()
        asked.result()
