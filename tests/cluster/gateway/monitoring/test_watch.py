"""A line for each request that a gateway has had."""

import logging
from contextlib import aclosing

import pytest

from cluster.gateway.gateway import Gateway
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.monitoring.watch import Watcher, asked
from cluster.replica.refusals.refusal import Refusal
from engine.errors import InvalidRequest
from engine.pooling import Pooling
from engine.request import ChatPrompt, Prompt, Request, Share
from engine.sampling_params import SamplingParams
from tests.cluster.gateway.test_gateway import REFERENCE, SECONDS, Replica, Replicas

LOG = "squadron.gateway"


async def lines(
    caplog: pytest.LogCaptureFixture, *replicas: Replica, num_deltas: int = 1000, request_id: str = "mine"
) -> list[logging.LogRecord]:
    """The records of one request, of which its client takes so many deltas."""
    gateway = Gateway(
        Replicas(*replicas), max_attempts=3, patience=SECONDS, observers=Observers(Watcher("demo", logs_requests=True))
    )
    await gateway.start("127.0.0.1")
    with caplog.at_level(logging.INFO, LOG):
        request = Request(request_id, "cornflower", SamplingParams(max_tokens=len(REFERENCE)), share=Share("ours"))
        async with aclosing(gateway.generate(request)) as deltas:
            try:
                async for _ in deltas:
                    num_deltas -= 1
                    if num_deltas == 0:
                        break
            except InvalidRequest:
                pass
    await close(gateway, *replicas)
    assert "cornflower" not in caplog.text
    return [record for record in caplog.records if record.message.startswith("request ended: ")]


async def test_a_request_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = await lines(caplog, Replica())
    told = vars(line)
    assert {name: told[name] for name in ("id", "model", "key", "status", "finish_reasons", "attempts")} == {
        "id": "mine",
        "model": "demo",
        "key": "ours",
        "status": 200,
        "finish_reasons": "length",
        "attempts": 1,
    }
    assert (told["prompt_tokens"], told["output_tokens"]) == (1, len(REFERENCE))
    assert 0 < told["ttft_seconds"] <= told["e2e_seconds"]
    assert "code" not in told


async def test_replicas_that_were_lost_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = await lines(caplog, Replica(dies_after=3), Replica())
    assert (vars(line)["attempts"], vars(line)["status"]) == (2, 200)
    assert "the connection to an engine replica ended; 1 requests continue on others" in caplog.messages


async def test_a_client_that_goes_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = await lines(caplog, Replica(dies_after=3), num_deltas=1)
    assert (vars(line)["status"], vars(line)["code"]) == (499, "client_disconnected")
    assert vars(line)["output_tokens"] >= 1


class Refusing(Replica):
    async def answer(self, request: Request, gateway: object) -> object:
        return Refusal.of(InvalidRequest("too long", param="prompt", code="context_length_exceeded"))


async def test_a_refused_request_has_its_code(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = await lines(caplog, Refusing())
    assert (vars(line)["status"], vars(line)["code"]) == (400, "context_length_exceeded")
    assert vars(line)["output_tokens"] == 0


async def test_an_id_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = await lines(caplog, Replica(), request_id="x\nINFO request ended: id=y status=200")
    assert "\n" not in line.message


async def test_nobody_watches_by_default(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica()
    gateway = Gateway(Replicas(replica), max_attempts=1, patience=SECONDS)
    await gateway.start("127.0.0.1")
    with caplog.at_level(logging.INFO, LOG):
        async for _ in gateway.generate(Request("mine", "x", SamplingParams(max_tokens=len(REFERENCE)))):
            pass
    await close(gateway, replica)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("prompt", "pooling", "name"),
    [
        (ChatPrompt([{"role": "user", "content": "a"}]), None, "chat"),
        ("a", None, "text_completion"),
        ([1], Pooling("last"), "embeddings"),
        ([1], Pooling("logprobs", (1, 2)), "score"),
    ],
)
def test_a_span_names_the_operation(prompt: Prompt, pooling: Pooling | None, name: str) -> None:
    request = Request("mine", prompt, SamplingParams(), pooling=pooling)
    told = asked(request, request)
    assert (told["gen_ai.operation.name"], told["gen_ai.provider.name"]) == (name, "squadron")


async def close(gateway: Gateway, *replicas: Replica) -> None:
    await gateway.close()
    for replica in replicas:
        await replica.client.close()
