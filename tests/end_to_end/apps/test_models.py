"""Several models in one application, each on its own engines, and names that stand for them."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
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
GENERATED = "vllm:generation_tokens_total"
QUESTION: Any = [{"role": "user", "content": "Write the numbers from 1 to 40."}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    embedder = as_embedder(tmp_path_factory.mktemp("models") / "embed")
    args = {
        "models": [
            {"engine": ENGINE | {"served_model_name": "steady"}},
            {"engine": ENGINE | {"served_model_name": "canary", "quantization": "int8"}},
            {"engine": ENGINE | {"served_model_name": "embed", "model": str(embedder)}},
        ],
        "aliases": {"gpt-4o": "steady", "demo": {"steady": 0.5, "canary": 0.5}},
    }
    with ray_cluster(num_workers=7), serving(build_app(args), host=LOOPBACK, port=port, ends_serve=True):
        yield f"http://{LOOPBACK}:{port}"


def as_embedder(folder: Path) -> Path:
    """The demo, with the files by which sentence-transformers says that it makes embeddings."""
    shutil.copytree(DEMO, folder)
    modules = [{"path": name, "type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling")]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "Pooling").mkdir()
    (folder / "Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
    return folder


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
    assert {card.id for card in client.models.list()} == {"steady", "canary", "embed", "gpt-4o", "demo"}


def test_embeddings_beside_a_chat(client: openai.OpenAI) -> None:
    """By a model that generates too, and by one that does not."""
    told = {model: client.embeddings.create(model=model, input="text") for model in ("canary", "embed")}
    assert {answer.model for answer in told.values()} == told.keys()
    vectors = [answer.data[0].embedding for answer in told.values()]
    assert len(vectors[0]) == len(vectors[1]) > 1 and vectors[0] != vectors[1]


def test_what_a_model_does_not_do(url: str, client: openai.OpenAI) -> None:
    no_text = "embed generates no text: it makes embeddings, at /v1/embeddings, as its modules.json says"
    with pytest.raises(openai.BadRequestError, match=no_text) as caught:
        ask(client, "embed")
    assert (caught.value.param, caught.value.code) == ("model", "unsupported_value")
    for route, asked in (
        ("completions", {"prompt": "text"}),
        ("responses", {"input": "text"}),
        ("messages", {"messages": QUESTION, "max_tokens": 1}),
        ("score", {"text_1": "text", "text_2": "text"}),
    ):
        answer = httpx.post(f"{url}/v1/{route}", json={"model": "embed"} | asked, timeout=SECONDS)
        assert answer.status_code == 400 and no_text in answer.json()["error"]["message"], route


def test_figures_have_the_models_name(url: str, client: openai.OpenAI) -> None:
    for model in ("steady", "canary"):
        ask(client, model)
    client.embeddings.create(model="embed", input="some text")
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=SECONDS).text)
    samples = [sample for family in families for sample in family.samples]
    of = {
        name: {sample.labels["model_name"] for sample in samples if sample.name == name}
        for name in ("vllm:prompt_tokens_total", "squadron:gateway_cpu_seconds_total")
    }
    assert of["vllm:prompt_tokens_total"] == {"steady", "canary", "embed"}
    assert of["squadron:gateway_cpu_seconds_total"] == {"steady"}
    tokens = {sample.labels["model_name"]: sample.value for sample in samples if sample.name == GENERATED}
    assert tokens["embed"] == 0 < min(tokens["steady"], tokens["canary"])
    assert pid_of(url, "embed") not in (None, pid_of(url, "steady"))


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
