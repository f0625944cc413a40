"""Where bodies are read: small ones at once, large ones beside the loop."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import pytest

from cluster.api.errors import ApiError
from cluster.api.models.model import Model, Models
from cluster.api.requests.parse import SMALL_BODY
from cluster.api.requests.read import Reader
from cluster.api.responses.generation import STARTED_AT_ONCE, run
from cluster.api.service import Shortcut
from engine.errors import InvalidRequest
from engine.outputs import RequestOutput
from engine.request import Request
from tests.cluster.api.scripted import ScriptedService


class Defaults(Mapping[str, Any]):
    """Default sampling parameters that know which threads asked for them, and can keep others than
    the main one waiting.
    """

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.asked = threading.Event()
        self.may_go_on = threading.Event()

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        self.threads.append(threading.current_thread())
        if threading.current_thread() is not threading.main_thread():
            self.asked.set()
            assert self.may_go_on.wait(60)
        return iter(())


@pytest.fixture
def defaults() -> Defaults:
    return Defaults()


@pytest.fixture
def reader(defaults: Defaults) -> Reader:
    model = Model(name="m", max_model_len=64, vocab_size=1000, default_sampling=defaults)
    return _reader(model)


def _reader(model: Model) -> Reader:
    return Reader(Models.one(ScriptedService(), model), strict_fields=False)


def body(text: str) -> bytes:
    return json.dumps({"model": "m", "prompt": text, "messages": [{"role": "user", "content": text}]}).encode()


LARGE = body("x" * SMALL_BODY)


@pytest.mark.parametrize("route", ["chat", "completion"])
async def test_large_bodies_are_read_in_a_thread_of_their_own(reader: Reader, defaults: Defaults, route: str) -> None:
    defaults.may_go_on.set()
    read = getattr(reader, route)
    await read(body("x"))
    assert defaults.threads == [threading.main_thread()]
    await asyncio.gather(*(read(LARGE) for _ in range(3)))
    assert len({thread.ident for thread in defaults.threads}) == 2


async def test_small_bodies_do_not_wait_for_large_ones(reader: Reader, defaults: Defaults) -> None:
    large = asyncio.create_task(reader.completion(LARGE))
    assert await asyncio.to_thread(defaults.asked.wait, 60)
    await reader.completion(body("x"))
    assert not large.done()
    defaults.may_go_on.set()
    assert [request.prompt for request in (await large).requests] == ["x" * SMALL_BODY]


async def test_what_is_wrong_with_a_large_body_is_told_as_of_a_small_one(reader: Reader) -> None:
    with pytest.raises(ApiError, match="not JSON"):
        await reader.completion(LARGE[:-1])
    with pytest.raises(InvalidRequest, match="temperature"):
        await reader.completion(LARGE[:-1] + b', "temperature": 3}')


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1] * 64 + ["x"]}, "prompt"),
        ({"prompt": [[1], [1] * 64 + ["x"]]}, "prompt[1]"),
        ({"prompt": "x", "stop_token_ids": [1] * 1000 + ["x"]}, "stop_token_ids"),
        ({"prompt": "x", "allowed_token_ids": [1] * 1000 + ["x"]}, "allowed_token_ids"),
    ],
)
async def test_too_many_ids_are_refused_before_they_are_looked_at(
    reader: Reader, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await reader.completion(json.dumps(fields).encode())
    assert caught.value.param == param and caught.value.code in ("context_length_exceeded", "array_above_max_length")


async def test_the_prompts_of_a_request_are_not_started_in_one_go() -> None:
    """So that a thousand of them do not hold up everybody else."""
    service, num_turns, turns = ScriptedService(), 0, []

    async def neighbour() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    class Begun:
        async def generate(
            self, request: Request, shortcut: Shortcut | None = None
        ) -> AsyncGenerator[RequestOutput, None]:
            turns.append(num_turns)
            async with aclosing(service.generate(request)) as outputs:
                async for output in outputs:
                    yield output

    model = Model(name="m", max_model_len=64, vocab_size=1000)
    call = await Reader(Models.one(ScriptedService(), model), strict_fields=False).completion(
        b'{"prompt": [' + b'"x", ' * 199 + b'"x"]}'
    )
    beside = asyncio.create_task(neighbour())
    finished = {update.prompt_index async for update in run(Begun(), call) if update.output.finished}
    beside.cancel()
    assert finished == set(range(200))
    assert max(turns.count(turn) for turn in turns) <= 2 * STARTED_AT_ONCE
