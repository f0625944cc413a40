"""Long prompts are computed by an engine of their own, which may be lost at any moment."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from ray import serve

from engine.offload.shared_folder import SHARED_MEMORY, is_shared
from tests.end_to_end.chaos.app import DEMO, App, app_args, running
from tests.end_to_end.chaos.processes import find
from tests.end_to_end.test_replica_lost import wait_until
from tests.perturbed import save_perturbed

SECONDS = 300.0
PREFILL = "ray::ServeReplica:squadron:EnginePrefillDeployment"
NUM_PROMPTS = 4


def folders() -> set[Path]:
    return {path for path in SHARED_MEMORY.iterdir() if is_shared(str(path))}


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    before = folders()
    with running(app_args({}, recovers=True, num_prefill_engines=1, prefill_min_tokens=200)) as app:
        wait_until(lambda: figure(app, "squadron:prefill_engines") == 1, "a gateway does not know the prefill engine")
        yield app
    assert folders() <= before, "nothing stays in shared memory"


@pytest.fixture
def client(app: App) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        yield client


def figure(app: App, name: str, label: str = "") -> float:
    """The sum of the metric's series that have this label."""
    lines = httpx.get(f"{app.url}/metrics", timeout=SECONDS).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{") and label in line)


def num_prefills(app: App, outcome: str) -> float:
    return figure(app, "squadron:prefills_total", f'outcome="{outcome}"')


def prompts(name: str) -> list[str]:
    """Of some hundred tokens, which begin differently."""
    return [f"{name} {number}: " + "keep what was said, and say it again. " * 60 for number in range(NUM_PROMPTS)]


def ask(client: openai.OpenAI, prompt: str, **more: Any) -> tuple[Any, int, int]:
    """The answer to the last bit, the prompt's tokens and how many of them were found."""
    answer = client.completions.create(
        model="demo", prompt=prompt, temperature=0.7, seed=3, max_tokens=24, logprobs=1, extra_body=more
    )
    (choice,), usage = answer.choices, answer.usage
    assert choice.logprobs is not None and usage is not None and usage.prompt_tokens_details is not None
    said = (choice.text, choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.finish_reason)
    return said, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0


def ask_all(client: openai.OpenAI, asked: list[str]) -> list[tuple[Any, int, int]]:
    with ThreadPoolExecutor(NUM_PROMPTS) as threads:
        return list(threads.map(lambda prompt: ask(client, prompt), asked))


def check_plain(client: openai.OpenAI, asked: list[str], told: list[tuple[Any, int, int]]) -> None:
    """With prompt_logprobs an engine computes all of a prompt itself."""
    assert [ask(client, prompt, prompt_logprobs=0)[0] for prompt in asked] == [said for said, _, _ in told]


def test_answers_are_the_same_with_prompts_that_another_engine_has_computed(app: App, client: openai.OpenAI) -> None:
    asked = prompts("first")
    told = ask_all(client, asked)
    assert num_prefills(app, "computed") == NUM_PROMPTS
    assert all(cached >= num_tokens - 32 > 200 for _, num_tokens, cached in told)
    assert figure(app, "squadron:offload_missed_blocks_total") == 0
    check_plain(client, asked, told)
    engines = httpx.get(f"{app.url}/debug/view", timeout=60).json()["engines"]
    assert [engine["computes_prompts"] for engine in engines] == [False, True]
    assert all(engine["view"]["ended"] and not engine["is_silent"] for engine in engines), "both are on the page"


def engines(app: App) -> list[dict[str, Any]]:
    """Last reports of both kinds."""
    told: list[dict[str, Any]] = httpx.get(f"{app.url}/debug/engines", timeout=SECONDS).json()["engines"]
    return told


def both_are(app: App, name: str, value: Any) -> bool:
    return [each[name] for each in engines(app)] == [value] * 2


@pytest.mark.long
def test_prefill_engines_have_the_weights_of_those_that_answer(app: App, client: openai.OpenAI, tmp_path: Path) -> None:
    save_perturbed(tmp_path)
    asked = prompts("of both")
    before = ask_all(client, asked)
    for folder in (tmp_path, DEMO):
        num_computed = num_prefills(app, "computed")
        told = serve.get_app_handle("squadron").update_weights.remote({"path": str(folder)}).result(timeout_s=SECONDS)
        assert told["error"] is None
        wait_until(lambda told=told: both_are(app, "fingerprint", told["system_fingerprint"]), "one has other weights")
        after = ask_all(client, asked)
        assert num_prefills(app, "computed") == num_computed + NUM_PROMPTS
        assert all(cached >= num_tokens - 32 for _, num_tokens, cached in after)
        check_plain(client, asked, after)
        assert [said for said, _, _ in after] != [said for said, _, _ in before]
        before = after


@pytest.mark.long
def test_prefill_engines_sleep_with_those_that_answer(app: App, client: openai.OpenAI) -> None:
    """Also one that takes a lost one's place meanwhile."""
    handle = serve.get_app_handle("squadron")
    assert handle.sleep.remote({"level": 1}).result(timeout_s=SECONDS) == {"error": None}
    wait_until(lambda: both_are(app, "sleep_level", 1), "one is awake")
    (pid,) = find(PREFILL)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: find(PREFILL) not in ([], [pid]), "there is no prefill engine again")
    wait_until(lambda: both_are(app, "sleep_level", 1), "one is awake, or lost")
    assert handle.wake_up.remote().result(timeout_s=SECONDS) == {"error": None}
    wait_until(lambda: both_are(app, "is_frozen", False), "one sleeps")
    num_computed, asked = num_prefills(app, "computed"), prompts("awake")
    check_plain(client, asked, ask_all(client, asked))
    assert num_prefills(app, "computed") == num_computed + NUM_PROMPTS


@pytest.mark.long
def test_a_prefill_engine_that_is_frozen_or_killed_costs_nothing_but_time(app: App, client: openai.OpenAI) -> None:
    """Frozen with prompts on it, it is killed by the gateway."""
    (pid,) = find(PREFILL)
    os.kill(pid, signal.SIGSTOP)
    asked = prompts("second")
    told = ask_all(client, asked)
    assert num_prefills(app, "failed") == NUM_PROMPTS
    wait_until(lambda: pid not in find(PREFILL), "the frozen replica is not killed")
    check_plain(client, asked, told)

    wait_until(lambda: figure(app, "squadron:prefill_engines") == 1, "there is no prefill engine again")
    (pid,) = find(PREFILL)
    asked = prompts("third")
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(ask_all, client, asked)
        os.kill(pid, signal.SIGKILL)
        check_plain(client, asked, asking.result(SECONDS))

    wait_until(lambda: figure(app, "squadron:prefill_engines") == 1, "there is no prefill engine again")
    num_computed = num_prefills(app, "computed")
    asked = prompts("fourth")
    check_plain(client, asked, ask_all(client, asked))
    computed = num_prefills(app, "computed")
    assert computed == num_computed + NUM_PROMPTS
