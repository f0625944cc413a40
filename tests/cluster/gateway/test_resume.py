"""A request that loses its engine replica at a given token ends as an undisturbed one does, to the
last byte and logprob.

Everything is real but the loss: two engines, their channel, the gateway, the HTTP API and the
`openai` client.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
import uvicorn

from cluster.api.app import build
from cluster.api.models.model import Model, Models
from cluster.gateway.gateway import Gateway
from cluster.replica.refusals.lost import EngineLost
from engine.outputs import RequestOutput
from tests.cluster.replica.test_deployment import SECONDS, Replica, Replicas, replicas

__all__ = ["replicas"]

MAX_TOKENS = 24
CUTS = ([1], [2, 11], [MAX_TOKENS - 1])
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 5},
    "beams": {"stream": False, "temperature": 0, "extra_body": {"beam_width": 3}},
    "three choices": {"n": 3, "seed": 6},
    "the best of three": {"n": 2, "best_of": 3, "seed": 7, "stream": False},
    "penalties": {"seed": 8, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    "stop": {"seed": 9, "n": 2, "stop": ["e", "is a"], "extra_body": {"min_tokens": 9}},
    "logprobs": {"seed": 10, "logprobs": 3, "n": 2},
    "prompt logprobs": {"seed": 11, "logprobs": 1, "echo": True, "stream": False},
}


class CutGateway(Gateway):
    """Loses the replica of every request once its first choice has so many tokens, whatever comes
    after them.
    """

    def __init__(self, replicas: Replicas) -> None:
        super().__init__(replicas, max_attempts=3, patience=SECONDS)
        self.cuts: list[int] = []
        self.num_cut = 0
        self._connections._server._on_deltas = self._cut

    def _cut(self, deltas: list[RequestOutput], connection: str) -> None:
        for delta in deltas:
            self._journals.accept([delta], connection)
            for journal in self._journals:
                if self.cuts and len((journal.output_ids or [[]])[0]) >= self.cuts[0]:
                    del self.cuts[0]
                    self.num_cut += 1
                    journal.fail(EngineLost("cut"))


@pytest.fixture
async def gateway(replicas: list[Replica]) -> AsyncIterator[CutGateway]:
    gateway = CutGateway(Replicas(replicas))
    await gateway.start("127.0.0.1")
    yield gateway
    await gateway.close()


async def test_a_cut_request_is_the_undisturbed_one(gateway: CutGateway, replicas: list[Replica]) -> None:
    async with asyncio.timeout(240), client_of(gateway, await replicas[0].model_info()) as client:
        for kind, options in KINDS.items():
            gateway.cuts = []
            undisturbed = await ask(client, **options)
            is_told_at_once = "beam_width" in options.get("extra_body", {}) or "best_of" in options
            for cuts in CUTS if not is_told_at_once else ([0],):
                gateway.cuts, gateway.num_cut = [*cuts], 0
                assert await ask(client, **options) == undisturbed, (kind, cuts)
                assert gateway.num_cut, (kind, cuts)


async def ask(client: openai.AsyncOpenAI, *, stream: bool = True, **options: Any) -> Any:
    """All that the client hears, without ids and times and how it came in pieces."""
    options = {"temperature": 0.9, "max_tokens": MAX_TOKENS} | options
    options["extra_body"] = {"ignore_eos": True} | options.get("extra_body", {})
    if stream:
        options |= {"stream_options": {"include_usage": True}}
    answer = await client.completions.create(model="demo", prompt="one two three", stream=stream, **options)
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in [chunk async for chunk in answer] if stream else [answer]:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            whole = choices.setdefault(choice.index, {"text": "", "logprobs": [], "finish_reason": None})
            whole["text"] += choice.text
            whole["finish_reason"] = choice.finish_reason or whole["finish_reason"]
            if choice.logprobs is not None:
                columns = json.loads(choice.logprobs.model_dump_json())
                whole["logprobs"] += zip(*(columns[name] for name in sorted(columns)), strict=True)
    assert usage is not None
    return choices, usage.prompt_tokens, usage.completion_tokens


@asynccontextmanager
async def client_of(gateway: Gateway, model: dict[str, Any]) -> AsyncIterator[openai.AsyncOpenAI]:
    app = build(gateway, Models.one(gateway, Model(name="demo", **model)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="critical"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            yield client
        server.should_exit = True
        await serving
