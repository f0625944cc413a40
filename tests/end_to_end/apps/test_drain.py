"""Two engines: a request goes to the one that has its prompt's beginning in its cache, or its
adapter. And one is told to end while its streams run: the other one goes on with them, and finds
their blocks.
"""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import ray

from cluster.workers.placement import DRIVER_CPUS
from engine.offload.file_format import is_block
from tests.end_to_end.apps.test_prefill import figure, folders
from tests.end_to_end.chaos.app import App, app_args, running
from tests.end_to_end.chaos.processes import is_alive
from tests.end_to_end.test_replica_lost import taken, wait_until

pytestmark = pytest.mark.long  # else: tests/cluster/replica/leaving/, tests/cluster/gateway/engines/
SECONDS = 300.0
NUM_STREAMS = 4
NUM_TOKENS = 1400  # of each: an engine that is told to end does so before they do, on a fast machine too
BLOCK = 16  # tokens
TURNS = 4
SYSTEMS = [f"This is conversation {number}. " + "Keep what was said. " * 70 for number in range(3)]
TWO_RANKS = {"tensor_parallel_size": 2, "num_spare_workers": 0}
MOST_AGAIN = 6 * BLOCK  # tokens of a stream that are computed again: what was not stored yet, and what came meanwhile


@pytest.fixture(scope="module", params=[pytest.param({}, id="one rank"), pytest.param(TWO_RANKS, id="two")])
def app(request: pytest.FixtureRequest) -> Iterator[App]:
    before = folders()
    with running(app_args(request.param, recovers=True, num_engines=2)) as app:
        yield app
    assert folders() <= before, "nothing stays in shared memory"


@pytest.fixture
def client(app: App) -> Iterator[openai.OpenAI]:
    wait_until(lambda: len(engines(app)) == 2, "there are not two engines")
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        yield client


def engines(app: App) -> dict[int, dict[str, Any]]:
    """The figures of those that can answer, by process."""
    reports = httpx.get(f"{app.url}/debug/engines", timeout=SECONDS).json()["engines"]
    return {each["pid"]: each["stats"] for each in reports if each["problem"] is None}


def prompts() -> list[str]:
    """Of some hundred tokens, which begin differently."""
    return [f"{number}: " + "keep what was said, and say it again. " * 30 for number in range(NUM_STREAMS)]


KINDS: list[dict[str, Any]] = [{}, {"n": 2}, {"model": "harbour"}, {"presence_penalty": 0.5}]


class Streams:
    """All prompts at once, of each kind; `salt`: only requests with the same share blocks."""

    def __init__(self, client: openai.OpenAI, salt: str) -> None:
        self._client, self._salt = client, salt
        self._threads = ThreadPoolExecutor(NUM_STREAMS)
        self.num_tokens = [0] * NUM_STREAMS
        self._said = [self._threads.submit(self._read, *each) for each in enumerate(prompts())]

    def _read(self, number: int, prompt: str) -> list[Any]:
        kind = KINDS[number % len(KINDS)]
        body = {"model": "demo", "prompt": prompt, "temperature": 0.7, "seed": number, "logprobs": 1} | kind
        said: list[list[Any]] = [[] for _ in range(kind.get("n", 1))]
        extra = {"ignore_eos": True, "cache_salt": self._salt}
        for chunk in self._client.completions.create(**body, max_tokens=NUM_TOKENS, stream=True, extra_body=extra):
            for choice in chunk.choices:
                own = said[choice.index]
                if choice.logprobs is not None:
                    own += zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
                own += [choice.finish_reason] if choice.finish_reason else []
                self.num_tokens[number] = min(map(len, said))
        return said

    def run(self) -> bool:
        """Whether all do; raises what one of them has met."""
        for each in self._said:
            if each.done():
                each.result()
        return min(self.num_tokens) > 2 * BLOCK

    def wait(self) -> list[Any]:
        with self._threads:
            return [each.result(SECONDS) for each in self._said]


@contextmanager
def told_to_end(app: App, streams: Streams) -> Iterator[tuple[int, int]]:
    """Once all streams run, one engine is, where no third one has room; it, and the other one.
    Until its process has ended.
    """
    wait_until(streams.run, "not all streams run")
    ending, other = sorted(engines(app), key=lambda pid: engines(app)[pid]["num_requests_running"])[::-1]
    with taken(ray.available_resources()["CPU"] - DRIVER_CPUS / 2):
        os.kill(ending, signal.SIGTERM)
        yield ending, other
        wait_until(lambda: ending not in engines(app), "it does not hand its streams back")
        assert min(streams.num_tokens) < NUM_TOKENS, "they still run"
        wait_until(lambda: not is_alive(ending), "it has not ended")


def check_undisturbed(client: openai.OpenAI, said: list[Any], salt: str) -> None:
    undisturbed = Streams(client, salt).wait()
    assert all(len(choice) == NUM_TOKENS + 1 for each in undisturbed for choice in each)
    assert said == undisturbed


def ask(client: openai.OpenAI, messages: list[Any], model: str = "demo") -> tuple[str, int, int]:
    """The answer, the prompt's tokens and how many of them were cached."""
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=24)
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return answer.choices[0].message.content or "", usage.prompt_tokens, cached


def finished(app: App) -> list[int]:
    """Requests that each engine has finished."""
    return [stats["num_requests_finished"] for _, stats in sorted(engines(app).items())]


def test_an_adapters_requests_go_where_it_is_loaded(app: App, client: openai.OpenAI) -> None:
    """Whatever their prompts; those without one go to both."""
    before, counts = finished(app), {}
    for model, number in (("demo", 12), ("harbour", 6)):
        for n in range(number):
            ask(client, [{"role": "user", "content": f"What is {n} + {number}?"}], model)
        asked = sum(before) + number
        wait_until(lambda asked=asked: sum(finished(app)) == asked, "the engines have not told of every request")
        counts[model] = [now - then for now, then in zip(finished(app), before, strict=True)]
        before = finished(app)
    assert min(counts["demo"]) > 0
    assert sorted(counts["harbour"]) == [0, 6]


def test_streams_of_an_engine_that_ends_go_on_elsewhere_with_their_blocks(app: App, client: openai.OpenAI) -> None:
    streams = Streams(client, "moved")
    with told_to_end(app, streams) as (ending, other):
        before = engines(app)
        num_moved = before[ending]["num_requests_running"]
        assert num_moved > 0
    said = streams.wait()
    stats = engines(app)[other]
    again = stats["num_prompt_tokens"] - before[other]["num_prompt_tokens"]
    assert again < num_moved * MOST_AGAIN, "of some hundred tokens each"
    assert stats["num_blocks_fetched"] - before[other]["num_blocks_fetched"] > num_moved * 20
    for direction in ("in", "out"):
        assert figure(app, "squadron:offloaded_bytes_total", f'direction="{direction}"') > 0
    check_undisturbed(client, said, "undisturbed")


def test_blocks_that_are_lost_on_the_way_are_computed_again(app: App, client: openai.OpenAI) -> None:
    streams = Streams(client, "lost")
    with told_to_end(app, streams) as (_, other), vandal():
        before = engines(app)[other]["num_blocks_missed"]
        wait_until(lambda: engines(app)[other]["num_blocks_missed"] > before + 4 * NUM_STREAMS, "nothing is missed")
    check_undisturbed(client, streams.wait(), "undisturbed-again")


@contextmanager
def vandal() -> Iterator[None]:
    """Of the blocks in folders that are made meanwhile, one in three is removed, one is cut
    short.
    """
    before, is_over, seen = folders(), threading.Event(), set[Path]()

    def damage() -> None:
        while not is_over.wait(0.001):
            for folder in folders() - before:
                for path in [each for each in folder.rglob("*") if each not in seen]:
                    if is_block(str(path.relative_to(folder))):
                        seen.add(path)
                        with suppress(OSError):
                            [path.unlink, lambda path=path: os.truncate(path, 100), lambda: None][len(seen) % 3]()

    thread = threading.Thread(target=damage)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert seen


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
    wait_until(lambda: all(each["num_requests_finished"] for each in engines(app).values()), "one got everything")

    os.kill(next(iter(engines(app))), signal.SIGKILL)
    for messages in conversations:
        *before, last = messages
        assert ask(client, before)[0] == last["content"]
