"""Several tokens a step, over HTTP and by handle: the answers of an engine without drafts, whoever
is killed.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from ray import serve

from cluster.llm import LLM
from engine.sampling_params import SamplingParams
from tests.end_to_end.chaos.app import DEMO, App, app_args, running
from tests.end_to_end.chaos.processes import ENGINE, SERVING, find
from tests.end_to_end.test_replica_lost import wait_until
from tests.engine.support.able import able_tokenizer
from tests.engine.support.draft_models import truncated

pytestmark = pytest.mark.long  # else: tests/engine/exactness/test_drafts.py, tests/cluster/workers/test_lost_drafts.py
SECONDS = 300.0
LENGTH: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True}  # what follows an answer repeats itself
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("Copy this: lemon harbour tiger window lemon harbour tiger window", {"temperature": 0.0}),
    ("Say lemon nine times.", {"temperature": 0.0, "repetition_penalty": 1.05}),
    ("Count from 1 to 40.", {"temperature": 0.7, "seed": 3, "top_p": 0.95}),
    ("What is Squadron?", {"temperature": 1.4, "seed": 5}),
    (
        "Copy this: lemon tiger lemon tiger",
        {"temperature": 0.7, "seed": 7, "structured_outputs": {"regex": "(lemon |tiger ){70}"}},
    ),
]


@pytest.fixture(scope="module", params=["ngram", "draft model"])
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    speculation: dict[str, Any] = {"num_speculative_tokens": 6, "prompt_lookup_min": 1}
    if request.param == "draft model":
        draft = truncated(tmp_path_factory.mktemp("drafts") / "truncated")
        shutil.copyfile(Path(able_tokenizer()) / "tokenizer.json", Path(draft) / "tokenizer.json")
        speculation = {"model": draft, "num_speculative_tokens": 3}
    with running(app_args({"tensor_parallel_size": 2, "speculative_config": speculation}, recovers=True)) as app:
        yield app


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """The texts that an engine of this process writes, without drafts."""
    with LLM(model=str(DEMO), tokenizer=able_tokenizer(), device="cpu", kv_cache_memory_bytes=64 << 20) as llm:
        answers = [
            llm.chat([[{"role": "user", "content": text}]], SamplingParams(**LENGTH, **params))[0]
            for text, params in ASKED
        ]
    return [answer.outputs[0].text for answer in answers]


def texts(app: App, disturb: Callable[[], object] = lambda: None) -> list[str]:
    """Of all streams at once; `disturb` is called when each of them has begun."""
    client = openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=SECONDS)
    with client, ThreadPoolExecutor(len(ASKED)) as threads:
        streams = [
            client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": text}],
                stream=True,
                max_tokens=LENGTH["max_tokens"],
                extra_body={"ignore_eos": True, "repetition_penalty": 1.0} | params,
            )
            for text, params in ASKED
        ]
        begun = [next(stream) for stream in streams]
        disturb()
        rest = threads.map(list, streams)
        return [
            "".join(choice.delta.content or "" for chunk in (first, *others) for choice in chunk.choices)
            for first, others in zip(begun, rest, strict=True)
        ]


def test_answers_are_those_without(app: App, expected: list[str]) -> None:
    assert texts(app) == expected
    handle: Any = serve.get_app_handle("squadron")
    for (text, params), whole in zip(ASKED, expected, strict=True):
        body = {"messages": [{"role": "user", "content": text}]} | LENGTH | params
        assert handle.chat.remote(body).result(timeout_s=SECONDS)["outputs"][0]["text"] == whole


def test_a_killed_worker_changes_nothing(app: App, expected: list[str]) -> None:
    assert texts(app, lambda: os.kill(find(SERVING)[0], signal.SIGKILL)) == expected


@pytest.mark.long
def test_a_killed_engine_replica_changes_nothing(app: App, expected: list[str]) -> None:
    assert texts(app, lambda: os.kill(find(ENGINE)[0], signal.SIGKILL)) == expected


def test_right_guesses_are_counted_and_shown_step_by_step(app: App, expected: list[str]) -> None:
    assert texts(app) == expected
    wait_until(lambda: app.drafts()["accepted_tokens_total"] > 0, "no guess was right")
    told = app.drafts()
    assert told["drafts_total"] <= told["draft_tokens_total"] >= told["accepted_tokens_total"]
    assert told["accepted_tokens_total"] == told["accepted_tokens_per_pos_total"]
    events = httpx.get(f"{app.url}/debug/trace", timeout=SECONDS).json()["traceEvents"]
    checked = [event["args"] for event in events if "drafts" in event["args"]]
    assert checked and all(0 <= step["accepted"] <= step["drafts"] == step["tokens"] - 1 for step in checked)
    assert any(step["accepted"] for step in checked)
