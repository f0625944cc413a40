"""What a key may ask for in a minute and at once: by HTTP, and by a clock that the test sets."""

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest
import yaml

from cluster.api.errors import ApiError
from cluster.api.keys.key import Key, digest_of
from cluster.api.keys.key_ring import KeyRing
from cluster.api.keys.limits import Caller, KeyLimits, as_duration
from cluster.api.models.model import Model, Models
from cluster.api.requests.read import Reader
from cluster.api.responses.generation import collect, run
from engine.errors import DeadlineExceeded, Overloaded
from tests.cluster.api.scripted import MODEL, PROMPT_IDS, Running, Script, ScriptedService, running

KEY = Key("team", digest_of(b"key"))
ENTRIES = [
    {"name": "two", "key": "two", "requests_per_minute": 2},
    {"name": "tokens", "key": "tokens", "tokens_per_minute": 100},
    {"name": "one-at-once", "key": "one-at-once", "max_concurrency": 1},
    {"name": "batch", "key": "batch", "priority": 5, "weight": 0.5, "cache_namespace": "team"},
    {"name": "free", "key": "free"},
]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_requests_come_back_evenly() -> None:
    clock = Clock()
    limits = KeyLimits(clock=clock)
    key = replace(KEY, requests_per_minute=3)
    for _ in range(3):
        assert limits.begin(key) is not None
    with pytest.raises(ApiError, match="API key 'team': 3 requests a minute are used up") as refused:
        limits.begin(key)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.headers == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
        "retry-after": "20",
    }
    clock.now += 20
    limits.begin(key)
    with pytest.raises(ApiError):
        limits.begin(key)
    clock.now += 3600
    for _ in range(3):
        limits.begin(key)
    with pytest.raises(ApiError):
        limits.begin(key)


def test_tokens_are_reserved_and_settled() -> None:
    clock = Clock()
    limits = KeyLimits(clock=clock)
    key = replace(KEY, tokens_per_minute=100)
    first, second = limits.begin(key), limits.begin(key)
    assert first is not None and second is not None
    first.reserve(60)
    with pytest.raises(ApiError, match="may need 60 tokens of 100 a minute, and 40 are left") as refused:
        second.reserve(60)
    assert refused.value.headers["retry-after"] == "12"
    second.end()
    first.follow(lambda: 10)
    first.end()
    third = limits.begin(key)
    assert third is not None
    clock.now += 6
    third.reserve(500)  # a whole minute's
    third.follow(lambda: 190)
    third.end()
    with pytest.raises(ApiError, match="100 tokens a minute are used up") as refused:
        limits.begin(key)
    assert refused.value.headers["retry-after"] == "55", "ninety over, and one"


def test_every_gateway_allows_its_part_rounded_up() -> None:
    limits = KeyLimits(2, Clock())
    key = replace(KEY, requests_per_minute=3, max_concurrency=1)
    turn = limits.begin(key)
    assert turn is not None
    with pytest.raises(ApiError, match="1 requests of at most 1 are running"):
        limits.begin(key)
    turn.end()
    limits.begin(key)
    with pytest.raises(ApiError):
        limits.begin(key)


def test_whoever_is_refused_for_too_many_at_once_is_told_when_these_end() -> None:
    clock = Clock()
    limits, key = KeyLimits(clock=clock), replace(KEY, max_concurrency=2)

    def refused() -> str:
        with pytest.raises(ApiError, match="2 requests of at most 2 are running") as error:
            limits.begin(key)
        return error.value.headers["retry-after"]

    turns = [limits.begin(key) for _ in range(2)]
    assert refused() == "1", "it is not known yet"
    clock.now += 30
    for turn in turns:
        assert turn is not None
        turn.end()
    turns = [limits.begin(key) for _ in range(2)]
    assert [refused() for _ in range(10)] == ["15", "30", "45", "60", "75", "90", "105", "120", "120", "120"]
    clock.now += 5
    assert turns[0] is not None
    turns[0].end()
    limits.begin(key)
    assert refused() == "13", "one of 5 s counts a fifth, and those that were refused are told"


def test_new_limits_hold_at_once_and_running_requests_still_count() -> None:
    limits = KeyLimits(clock=Clock())
    turn = limits.begin(replace(KEY, max_concurrency=2))
    assert turn is not None
    with pytest.raises(ApiError, match="1 requests of at most 1 are running"):
        limits.begin(replace(KEY, max_concurrency=1))
    turn.end()
    assert limits.begin(replace(KEY, max_concurrency=1)) is not None
    assert limits.begin(KEY) is None, "without limits nothing is counted"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, b"0ms"), (0.0194, b"20ms"), (1, b"1s"), (1.23, b"1.3s"), (59.99, b"60s"), (60, b"1m0s"), (360.2, b"6m1s")],
)
def test_durations(seconds: float, text: bytes) -> None:
    assert as_duration(seconds) == text


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Running]:
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump({"keys": ENTRIES}))
    with running(api_keys=KeyRing(file=str(path))) as server:
        yield server


def ask(server: Running, key: str, **fields: object) -> httpx.Response:
    body = {"model": MODEL, "prompt": "a", **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})


def test_over_http(limited: Running) -> None:
    told = ask(limited, "two").headers
    assert [told[f"x-ratelimit-{name}-requests"] for name in ("limit", "remaining")] == ["2", "1"]
    assert "x-ratelimit-limit-tokens" not in told
    assert ask(limited, "two", stream=True).headers["x-ratelimit-remaining-requests"] == "0"
    refused = ask(limited, "two")
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert len(limited.service.generated) == 2, "refused before anything is asked of the engines"
    models = httpx.get(f"{limited.url}/v1/models", headers={"authorization": "Bearer two"})
    assert models.status_code == 200, "which asks nothing of the engines"
    assert ask(limited, "free").status_code == 200
    with (
        openai.OpenAI(base_url=f"{limited.url}/v1", api_key="two", max_retries=0) as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.completions.create(model=MODEL, prompt="a")


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_over_http(limited: Running, stream: bool) -> None:
    first = ask(limited, "tokens", max_tokens=50, stream=stream)
    assert first.headers["x-ratelimit-limit-tokens"] == "100"
    assert int(first.headers["x-ratelimit-remaining-tokens"]) == 49, "what it may need is set aside"
    used = len(PROMPT_IDS) + 3
    second = ask(limited, "tokens", max_tokens=10)
    left = int(second.headers["x-ratelimit-remaining-tokens"])
    assert 100 - used - 11 <= left < 100 - 11, "what it did not need has come back"
    refused = ask(limited, "tokens", max_tokens=60, n=2)
    assert refused.status_code == 429
    assert len(refused.headers.get_list("x-ratelimit-remaining-tokens")) == 1


def test_concurrency_ends_with_the_connection(limited: Running) -> None:
    limited.service.scripts["a"] = script = Script(waits=True)
    headers = {"authorization": "Bearer one-at-once"}
    body = {"model": MODEL, "prompt": "a", "stream": True}
    with httpx.stream("POST", f"{limited.url}/v1/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200 and script.waiting.wait(60)
        refused = ask(limited, "one-at-once", prompt="b")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert script.closed.wait(60)
    again = threading.Event()
    while not again.is_set():  # the connection's end takes its time to be noticed
        if ask(limited, "one-at-once", prompt="b").status_code == 200:
            again.set()


def test_requests_are_the_keys_own(limited: Running) -> None:
    ask(limited, "batch", priority=1, cache_salt="salt")
    ask(limited, "free")
    batch, free = limited.service.generated
    assert (batch.share.key, batch.share.weight, batch.priority) == ("batch", 0.5, 5)
    assert batch.cache_salt == "team\nsalt"
    assert (free.share.key, free.share.weight, free.priority) == ("free", 1.0, 0)


def test_a_prompt_counts_if_the_client_leaves_before_the_first_token(limited: Running) -> None:
    prompt = "p" * 160
    limited.service.scripts[prompt] = script = Script(texts=[], waits=True)
    body = json.dumps({"model": MODEL, "prompt": prompt, "stream": True, "max_tokens": 1})
    lines = ["Host: a", "X-API-Key: tokens", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    request = "\r\n".join(["POST /v1/completions HTTP/1.1", *lines, "", body])
    url = httpx.URL(limited.url)
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(request.encode())
        assert script.waiting.wait(60)
    assert script.closed.wait(60)
    left = ask(limited, "tokens", max_tokens=1).headers["x-ratelimit-remaining-tokens"]
    assert int(left) < 70


@pytest.mark.parametrize(("error", "used"), [(Overloaded("full"), 0), (DeadlineExceeded("late"), 41)])
@pytest.mark.parametrize("num_prompts", [1, 3])
async def test_a_prompt_that_is_refused_costs_nothing(error: Exception, used: int, num_prompts: int) -> None:
    """Nor do others of its call, of which nothing was told."""
    service, limits = ScriptedService(), KeyLimits(clock=Clock())
    prompt = "p" * 160
    service.scripts[prompt] = Script(texts=[], error=error)
    waiting = "q" * 160
    service.scripts[waiting] = Script(texts=[], waits=True)
    key = replace(KEY, tokens_per_minute=1000)
    turn = limits.begin(key)
    assert turn is not None
    model = Model(name=MODEL, max_model_len=640, vocab_size=1000)
    prompts = [*[waiting] * (num_prompts - 1), prompt]
    body = json.dumps({"model": MODEL, "prompt": prompts, "max_tokens": 1}).encode()
    call = await Reader(Models.one(service, model), strict_fields=False).completion(body)
    call = call.sent_by(Caller(key, turn))
    with pytest.raises(type(error)):
        await collect(call, run(service, call))
    turn.end()
    account = limits.begin(key)
    assert account is not None
    account.reserve(1000 - used * num_prompts)
    with pytest.raises(ApiError):
        account.reserve(1)
