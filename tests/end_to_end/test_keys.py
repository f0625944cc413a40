"""API keys of a file, as `squadron serve` has them: what each gets beside the others, what each is
refused, and a file that changes while streams run.

The engine is paused while requests come, so that all of them wait before the first is computed.
Then it is paused again while all keys still have some that wait: the tokens that each was given by
then tell whose turn it was, however fast the machine is.
"""

import asyncio
import hashlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end.commands import serve
from tests.end_to_end.conftest import LOOPBACK, free_port
from tests.end_to_end.prometheus import OF_KEYS, needs_prometheus, panels, reading

SECONDS = 300.0  # more than anything here takes
OTHERS = [f"key-{number}" for number in range(4)]
GREEDY = "greedy"
ENTRIES: list[dict[str, Any]] = [
    *({"name": name, "key": name} for name in [*OTHERS, GREEDY, "leaver"]),
    {"name": "admin", "key": "admin", "controls_engines": True},
    {"name": "few", "key": "few", "requests_per_minute": 2},
    {"name": "brief", "key": "brief", "tokens_per_minute": 100},
    {"name": "single", "key": "single", "max_concurrency": 1},
    {"name": "patient", "key": "patient", "priority": 5},
    *({"name": name, "key": name, "cache_namespace": "team"} for name in ("mate-0", "mate-1")),
]
NUM_EACH, TIMES = 36, 20  # requests of each key, and the greedy one's in times of that
NUM_LOOKED_AT = 125  # answers, of which each of five keys should have 25: its others still wait
NUM_TOKENS = 16  # of each answer
TOKENS = f"{OF_KEYS}tokens_total"
QUEUE = 400  # requests: less than all keys send


@dataclass(frozen=True, slots=True)
class Keyed:
    """The server, and the file of its keys."""

    port: int
    file: Path

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def write(self, entries: list[dict[str, Any]]) -> None:
        """As a careful operator does."""
        new = self.file.with_suffix(".new")
        new.write_text(yaml.safe_dump({"keys": entries}), encoding="utf-8")
        os.replace(new, self.file)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("keys")
    keyed = Keyed(free_port(), folder / "keys.yaml")
    keyed.write(ENTRIES)
    options = ["--api-key-file", str(keyed.file), "--enable-sleep-mode", "--scheduling-policy", "priority"]
    options += ["--max-num-seqs", "4", "--max-num-queued-reqs", str(QUEUE), "--max-num-queued-tokens", "0"]
    options += ["--max-queue-seconds", "0"]  # a slow machine is to refuse no more than a fast one
    with serve(folder, keyed.port, *options, "--num-threads", "1") as command:
        command.wait_until_ready()
        assert command.process.poll() is None, command.said
        yield keyed


@pytest.fixture
async def clients(keyed: Keyed) -> AsyncIterator["Clients"]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=keyed.url, timeout=SECONDS, limits=limits) as http:
        yield Clients(http)


def samples(metrics: str, name: str) -> dict[tuple[str, ...], float]:
    """By all labels but the model and the engine, in order of their names."""
    found = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == name:
                labels = sorted(sample.labels.items())
                place = tuple(value for label, value in labels if label not in ("model_name", "engine"))
                found[place] = sample.value
    return found


def generated(tokens: dict[tuple[str, ...], float]) -> dict[str, float]:
    """Those of answers, by key."""
    return {key: value for (key, kind), value in tokens.items() if kind == "generation"}


class Clients:
    """Of all keys: each key is its own name."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.answered: list[str] = []  # keys, in the order of their answers

    async def ask(self, key: str, prompt: str = "once", **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True} | fields
        answer = await self.request("POST", "/v1/completions", key, json=body)
        if answer.status_code == 200:
            self.answered.append(key)
        return answer

    async def request(self, method: str, path: str, key: str, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return await self._http.request(method, path, headers=headers, **options)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No request begins, and those that run stand still, until the context ends."""
        assert (await self.request("POST", "/pause?mode=keep", "admin")).status_code == 200
        try:
            yield
        finally:
            assert (await self.request("POST", "/resume", "admin")).status_code == 200

    async def until_wait(self, count: int, refused: list[httpx.Response] | None = None) -> None:
        """So many requests wait, or were refused."""
        deadline = time.monotonic() + SECONDS
        while True:
            gateway = (await self.request("GET", "/debug/engines", "admin")).json()["gateway"]
            if gateway["waiting"] + len(refused or ()) == count:
                return
            assert time.monotonic() < deadline, gateway
            await asyncio.sleep(0.05)

    async def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """See `samples`."""
        return samples((await self.request("GET", "/metrics", "admin")).text, name)

    async def generated(self) -> dict[str, float]:
        """Tokens of answers, by key."""
        return generated(await self.samples(TOKENS))

    async def pause_once_given(self, num_tokens: int) -> None:
        """Once all keys have been given so many: in a thread, since the loop, with hundreds of
        answers, is seconds behind the server.
        """

        def wait() -> None:
            headers = {"authorization": "Bearer admin"}
            with httpx.Client(base_url=self._http.base_url, headers=headers, timeout=SECONDS) as http:
                deadline = time.monotonic() + SECONDS
                while sum(generated(samples(http.get("/metrics").text, TOKENS)).values()) < num_tokens:
                    assert time.monotonic() < deadline
                assert http.post("/pause?mode=keep").status_code == 200

        await asyncio.to_thread(wait)


@dataclass(frozen=True, slots=True)
class Contest:
    """What came of requests that all waited at once."""

    shares: dict[str, float]  # of the tokens, by key, while all of them had requests that waited
    texts: dict[tuple[str, int], str]  # by key and number
    refused: list[httpx.Response]  # of the greedy key


async def contest(clients: Clients, num_greedy: int) -> Contest:
    """The others ask, then the greedy one; nobody else is refused."""
    texts: dict[tuple[str, int], str] = {}
    refused: list[httpx.Response] = []
    tokens = Counter(await clients.generated())

    async def ask(key: str, number: int) -> None:
        answer = await clients.ask(key, f"{number}:")
        if answer.status_code != 200 and key == GREEDY:
            refused.append(answer)
        else:
            assert answer.status_code == 200, (key, answer.text)
            texts[key, number] = answer.json()["choices"][0]["text"]

    async with asyncio.TaskGroup() as tasks:
        async with clients.paused():
            for number in range(NUM_EACH):
                for key in OTHERS:
                    tasks.create_task(ask(key, number))
            await clients.until_wait(len(OTHERS) * NUM_EACH)
            for number in range(num_greedy):
                tasks.create_task(ask(GREEDY, number))
            await clients.until_wait(len(OTHERS) * NUM_EACH + num_greedy, refused)
        await clients.pause_once_given(sum(tokens.values()) + NUM_LOOKED_AT * NUM_TOKENS)
        async with clients.paused():
            given = Counter(await clients.generated())
    given.subtract(tokens)
    assert max(given[key] for key in OTHERS) < NUM_EACH * NUM_TOKENS, "none has been answered all"
    total = sum(given.values())
    return Contest({key: given[key] / total for key in [*OTHERS, GREEDY]}, texts, refused)


@pytest.mark.long  # else: tests/engine/scheduling/waiting/test_fair_shares.py, tests/cluster/gateway/test_door.py
async def test_a_key_at_twenty_times_its_share_takes_a_tenth_at_most_from_others(clients: Clients) -> None:
    """Nor can it fill the queue for them, nor change their answers."""
    before = await contest(clients, NUM_EACH)
    tokens, refused = await clients.generated(), await clients.samples(f"{OF_KEYS}refused_requests_total")
    beside = await contest(clients, NUM_EACH * TIMES)
    print(f"shares of tokens: {before.shares} with equal ones, {beside.shares} beside one that sent {TIMES} times")
    assert {key: beside.shares[key] for key in OTHERS if beside.shares[key] < 0.9 * before.shares[key]} == {}
    assert before.refused == [] and len(beside.refused) > NUM_EACH
    assert {(answer.status_code, answer.text) for answer in beside.refused if answer.status_code != 429} == set()
    assert {answer.json()["error"]["code"] for answer in beside.refused} == {"rate_limit_exceeded"}
    assert all(1 <= int(answer.headers["retry-after"]) <= 120 for answer in beside.refused)
    assert before.texts == {place: text for place, text in beside.texts.items() if place in before.texts}

    new = await clients.generated()
    gained = {key: new[key] - tokens[key] for key in [*OTHERS, GREEDY]}
    num_greedy = NUM_EACH * TIMES - len(beside.refused)
    assert gained == dict.fromkeys(OTHERS, NUM_EACH * NUM_TOKENS) | {GREEDY: num_greedy * NUM_TOKENS}
    told = await clients.samples(f"{OF_KEYS}refused_requests_total")
    more = {series: value - refused[series] for series, value in told.items() if value != refused[series]}
    assert more == {(GREEDY, "rate_limit_exceeded"): len(beside.refused)}


async def test_each_ones_limits_are_refused_to_it_alone(clients: Clients) -> None:
    refused = await clients.samples(f"{OF_KEYS}refused_requests_total")
    for left in ("1", "0"):
        headers = (await clients.ask("few")).headers
        assert [headers[f"x-ratelimit-{name}-requests"] for name in ("limit", "remaining")] == ["2", left]
    assert int((await clients.ask("brief", max_tokens=60)).headers["x-ratelimit-limit-tokens"]) == 100
    async with asyncio.TaskGroup() as tasks, clients.paused():
        only = tasks.create_task(clients.ask("single"))
        await clients.until_wait(1)
        answers = {
            "few": await clients.ask("few"),
            "brief": await clients.ask("brief", max_tokens=90),
            "single": await clients.ask("single"),
        }
        others = [tasks.create_task(clients.ask(key)) for key in OTHERS]
        await clients.until_wait(1 + len(OTHERS))
    assert {key: answer.status_code for key, answer in answers.items()} == dict.fromkeys(answers, 429)
    assert {answer.json()["error"]["type"] for answer in answers.values()} == {"rate_limit_error"}
    waits = {key: int(answer.headers["retry-after"]) for key, answer in answers.items()}
    assert waits["few"] <= 30 and waits["brief"] <= 60 and waits["single"] == 1
    assert answers["few"].headers["x-ratelimit-remaining-requests"] == "0"
    assert int(answers["brief"].headers["x-ratelimit-remaining-tokens"]) < 90
    assert "API key 'single': 1 requests of at most 1 are running" in answers["single"].json()["error"]["message"]
    assert only.result().status_code == 200, "the request that filled its limit"
    assert {answer.result().status_code for answer in others} == {200}
    assert not any(name.startswith("x-ratelimit") for name in others[0].result().headers)
    told = await clients.samples(f"{OF_KEYS}refused_requests_total")
    more = {series: value - refused[series] for series, value in told.items() if value != refused[series]}
    assert more == {(key, "rate_limit_exceeded"): 1 for key in answers}


async def test_no_request_is_more_urgent_than_its_key_may_be(clients: Clients) -> None:
    async with asyncio.TaskGroup() as tasks, clients.paused():
        for _ in range(12):
            tasks.create_task(clients.ask("patient", priority=0))
        await clients.until_wait(12)
        for _ in range(8):
            tasks.create_task(clients.ask("key-0", priority=0))
        await clients.until_wait(20)
    assert clients.answered == ["key-0"] * 8 + ["patient"] * 12


async def test_cached_prompts_are_their_keys_own(clients: Clients) -> None:
    """Whatever `cache_salt` another key sends, and whatever an answer tells of the cache."""
    prompt = "A prompt of many tokens, which is cached. " * 20

    async def num_cached(key: str, **fields: Any) -> int:
        answer = await clients.ask(key, prompt, max_tokens=1, **fields)
        return int((answer.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

    assert await num_cached("key-0") == 0
    own = await num_cached("key-0")
    for salt in (None, "key-0", hashlib.sha256(b"key-0").hexdigest()):
        assert await num_cached("key-1", **({} if salt is None else {"cache_salt": salt})) == 0
    assert own > 64 and await num_cached("key-1") == own, "its own, by now"
    assert await num_cached("mate-0") == 0 and await num_cached("mate-1") == own, "keys of one namespace"


async def test_keys_change_while_streams_run(keyed: Keyed, clients: Clients) -> None:
    body: dict[str, Any] = {"model": "demo", "prompt": "Count:", "max_tokens": 1000, "temperature": 0}
    body["extra_body"] = {"ignore_eos": True}
    url = f"{keyed.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="leaver", max_retries=0, timeout=SECONDS) as leaver:
        stream = await leaver.completions.create(stream=True, **body)
        chunks = [await anext(stream)]
        async with clients.paused():
            keyed.write([entry for entry in ENTRIES if entry["name"] != "leaver"] + [{"name": "joiner", "key": "new"}])
            deadline = time.monotonic() + SECONDS
            while (await clients.request("GET", "/v1/models", "leaver")).status_code != 401:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            with pytest.raises(openai.AuthenticationError):
                await leaver.completions.create(**body)
        chunks += [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    async with openai.AsyncOpenAI(base_url=url, api_key="new", max_retries=0, timeout=SECONDS) as joiner:
        answer = await joiner.completions.create(**body)
    assert answer.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks)


@needs_prometheus
async def test_every_panel_of_keys_shows_something(keyed: Keyed, clients: Clients, tmp_path: Path) -> None:
    assert (await clients.ask("key-0")).status_code == 200
    expressions = [expression for _, expression in panels() if OF_KEYS in expression]
    for name in ("requests", "refused_requests", "tokens"):
        assert any(f"{OF_KEYS}{name}_total" in expression for expression in expressions)
    with reading(keyed.port, tmp_path, key="admin") as prometheus:
        for expression in expressions:
            prometheus.until(expression)
            assert "key-0" in {found["metric"]["key"] for found in prometheus.query(expression)}
