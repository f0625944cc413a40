"""Requests go to the engine replica that has their prompt's beginning in its cache, or their
adapter.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.end_to_end.chaos.app import App, app_args, running
from tests.end_to_end.test_replica_lost import wait_until

SECONDS = 300.0
TURNS = 4
BLOCK = 16  # tokens
SYSTEMS = [f"This is conversation {number}. " + "Keep what was said. " * 70 for number in range(3)]


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with running(app_args({}, recovers=True, num_engines=2)) as app:
        wait_until(lambda: len(engines(app)) == 2, "a gateway does not know both replicas")
        yield app


@pytest.fixture
def client(app: App) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        yield client


def engines(app: App) -> list[dict[str, Any]]:
    """Their last reports."""
    told: list[dict[str, Any]] = httpx.get(f"{app.url}/debug/engines", timeout=SECONDS).json()["engines"]
    return told


def ask(client: openai.OpenAI, messages: list[Any], model: str = "demo") -> tuple[str, int, int]:
    """The answer, the prompt's tokens and how many of them were cached."""
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=24)
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return answer.choices[0].message.content or "", usage.prompt_tokens, cached


def finished(app: App, number: int) -> list[int]:
    """Requests that each engine has finished, once these are `number` together."""
    wait_until(lambda: sum(_finished(app)) == number, "the engines have not told of every request")
    return _finished(app)


def _finished(app: App) -> list[int]:
    told = sorted(engines(app), key=lambda engine: str(engine["replica"]))
    return [engine["stats"]["num_requests_finished"] for engine in told]


def test_an_adapters_requests_go_where_it_is_loaded(app: App, client: openai.OpenAI) -> None:
    """Whatever their prompts; those without one go to both."""
    before = _finished(app)
    counts = {}
    for model, number in (("demo", 12), ("harbour", 6)):
        for n in range(number):
            ask(client, [{"role": "user", "content": f"What is {n} + {number}?"}], model)
        after = finished(app, sum(before) + number)
        counts[model] = [now - then for now, then in zip(after, before, strict=True)]
        before = after
    assert min(counts["demo"]) > 0
    assert sorted(counts["harbour"]) == [0, 6]


def test_every_turn_finds_its_earlier_ones_and_a_lost_replica_changes_no_answer(
    app: App, client: openai.OpenAI
) -> None:
    conversations: list[list[Any]] = [[{"role": "system", "content": system}] for system in SYSTEMS]
    lengths = [0] * len(conversations)
    for turn in range(TURNS):
        for number, messages in enumerate(conversations):
            messages.append({"role": "user", "content": f"What is {turn + 1} + {number + 2}?"})
            text, num_tokens, cached = ask(client, messages)
            assert cached >= lengths[number] // BLOCK * BLOCK, f"turn {turn} of conversation {number}"
            lengths[number] = num_tokens
            messages.append({"role": "assistant", "content": text})
    assert min(lengths) > 400
    wait_until(lambda: all(engine["stats"]["num_requests_finished"] for engine in engines(app)), "one got everything")

    os.kill(engines(app)[0]["pid"], signal.SIGKILL)
    for messages in conversations:
        *before, last = messages
        assert ask(client, before)[0] == last["content"]
