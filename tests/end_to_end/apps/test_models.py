"""Two models in one application, each on its own engines, and names that stand for them."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.launch.app import build_app
from cluster.launch.ray_cluster import ray_cluster
from cluster.launch.serving import serving
from cluster.sockets import LOOPBACK
from tests.end_to_end.chaos.app import DEMO
from tests.end_to_end.conftest import free_port
from tests.end_to_end.test_replica_lost import wait_until

SECONDS = 300.0
ENGINE = {"model": str(DEMO), "device": "cpu", "num_threads": 1, "kv_cache_memory_bytes": 32 << 20}
QUESTION: Any = [{"role": "user", "content": "Write the numbers from 1 to 40."}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    args = {
        "models": [
            {"engine": ENGINE | {"served_model_name": "steady"}},
            {"engine": ENGINE | {"served_model_name": "canary", "quantization": "int8"}},
        ],
        "aliases": {"gpt-4o": "steady", "demo": {"steady": 0.5, "canary": 0.5}},
    }
    with ray_cluster(num_workers=6), serving(build_app(args), host=LOOPBACK, port=port, ends_serve=True):
        yield f"http://{LOOPBACK}:{port}"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        yield client


def ask(client: openai.OpenAI, model: str, messages: Any = QUESTION) -> tuple[str, str, str | None]:
    """Who answered, what, and by which weights and arithmetic."""
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=64)
    return answer.model, answer.choices[0].message.content or "", answer.system_fingerprint


def test_requests_choose_by_name(client: openai.OpenAI) -> None:
    steady, canary = ask(client, "steady"), ask(client, "canary")
    assert (steady[0], canary[0]) == ("steady", "canary")
    assert steady[2] != canary[2]
    assert ask(client, "gpt-4o") == steady
    answers = [ask(client, "demo", [{"role": "user", "content": f"{n} + 1 ="}])[0] for n in range(16)]
    assert set(answers) == {"steady", "canary"}
    assert {card.id for card in client.models.list()} == {"steady", "canary", "gpt-4o", "demo"}


def test_an_embedding_beside_a_chat(client: openai.OpenAI) -> None:
    told = client.embeddings.create(model="canary", input="text")
    assert told.model == "canary" and len(told.data[0].embedding) > 1


def test_figures_have_the_models_name(url: str, client: openai.OpenAI) -> None:
    for model in ("steady", "canary"):
        ask(client, model)
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=SECONDS).text)
    samples = [sample for family in families for sample in family.samples]
    of = {
        name: {sample.labels["model_name"] for sample in samples if sample.name == name}
        for name in ("vllm:generation_tokens_total", "squadron:gateway_cpu_seconds_total")
    }
    assert of["vllm:generation_tokens_total"] == {"steady", "canary"}
    assert of["squadron:gateway_cpu_seconds_total"] == {"steady"}


@pytest.mark.long
def test_a_lost_engine_of_one_model_changes_no_answer_of_either(url: str, client: openai.OpenAI) -> None:
    expected = {model: ask(client, model) for model in ("steady", "canary")}
    pid = pid_of(url, "canary")
    stream = client.chat.completions.create(
        model="canary", messages=QUESTION, temperature=0, max_tokens=64, stream=True
    )
    text = ""
    for chunk in stream:
        if not text:
            os.kill(pid, signal.SIGKILL)
        text += chunk.choices[0].delta.content or ""
    assert text == expected["canary"][1]
    assert ask(client, "steady") == expected["steady"]
    wait_until(lambda: pid_of(url, "canary") not in (None, pid), "no engine of the model took its place")
    assert ask(client, "canary") == expected["canary"]


def pid_of(url: str, model: str) -> Any:
    """Of the model's engine replica; None while there is none."""
    engines = httpx.get(f"{url}/debug/engines", timeout=SECONDS).json()["engines"]
    return next((engine["pid"] for engine in engines if f"EngineDeployment-{model}#" in engine["replica"]), None)
