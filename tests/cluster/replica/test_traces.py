"""A request's trace, from a client's span to an engine's steps."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from cluster.gateway.gateway import Gateway
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.monitoring.watch import Watcher
from cluster.owner import this_process
from cluster.telemetry.tracing import Telemetry, Tracer, make_tracer
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.cluster.replica.test_deployment import CONFIG, SECONDS, Replica, Replicas
from tests.cluster.telemetry.receiver import Received, Receiver, receiving

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CLIENT = "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE_ID}-{CLIENT}-01"}
PROMPT = "one two three"
PARAMS = SamplingParams(max_tokens=400, seed=7, ignore_eos=True)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
async def replicas(receiver: Receiver) -> AsyncIterator[list[Replica]]:
    replicas = []
    for _ in range(2):
        replica = Replica.__new__(Replica)
        await replica.__init__(CONFIG, this_process(), Telemetry(receiver.url, collect_detailed_traces=True))
        replicas.append(replica)
    yield replicas
    for replica in replicas:
        await replica.stop()


@pytest.fixture
def tracer(receiver: Receiver) -> Tracer:
    tracer = make_tracer(Telemetry(receiver.url), "gateway")
    assert tracer is not None
    return tracer


@pytest.fixture
async def gateway(replicas: list[Replica], tracer: Tracer) -> AsyncIterator[Gateway]:
    gateway = Gateway(
        Replicas(replicas), max_attempts=2, patience=SECONDS, observers=Observers(Watcher("demo", tracer))
    )
    await gateway.start("127.0.0.1")
    yield gateway
    await gateway.close()


async def test_a_request_that_moves_keeps_its_trace(
    gateway: Gateway, replicas: list[Replica], tracer: Tracer, receiver: Receiver
) -> None:
    stream = gateway.generate(Request("mine", PROMPT, PARAMS, trace_headers=HEADERS))
    await anext(stream)
    await replicas[0].stop()
    async for _ in stream:
        pass
    tracer.flush(SECONDS)
    spans = await asyncio.to_thread(
        receiver.trace, TRACE_ID, "llm_request", "engine", "engine", "prefill", "prefill", "decode", "step"
    )
    (request,) = named(spans, "llm_request")
    assert request.parent_id == CLIENT and not request.has_failed
    assert request.events == [("next attempt", {"squadron.attempt": 1})]
    first, second = sorted(named(spans, "engine"), key=lambda span: span.attributes["squadron.attempt"])
    assert first.parent_id == second.parent_id == request.span_id
    assert first.has_failed and not second.has_failed
    assert request.start <= first.start <= second.start <= second.end
    assert request.attributes["gen_ai.usage.completion_tokens"] == PARAMS.max_tokens
    assert request.attributes["gen_ai.response.finish_reasons"] == ["length"]
    phases = [span for span in spans if span.parent_id == second.span_id and span.name != "step"]
    assert [span.name for span in sorted(phases, key=lambda span: span.start)] == [
        *("tokenize", "queue", "prefill", "decode")
    ]
    steps = [span for span in spans if span.parent_id == second.span_id and span.name == "step"]
    assert 0 < len(steps) <= 64  # of the tokens that were left: a slow machine stops the first one late
    assert all(step.end <= second.end for step in steps) and all(
        step.attributes["squadron.num_tokens"] == 1 for step in steps
    )
    assert all(len(step.attributes["squadron.rank_seconds"]) == 1 for step in steps)


async def test_nothing_of_a_text_is_told(gateway: Gateway, tracer: Tracer, receiver: Receiver) -> None:
    headers = {"traceparent": f"00-{'1' * 32}-{CLIENT}-01"}
    params = SamplingParams(max_tokens=4, stop=("alpine",), bad_words=("beryllium",))
    async for _ in gateway.generate(Request("r", "cornflower", params, cache_salt="delphi", trace_headers=headers)):
        pass
    tracer.flush(SECONDS)
    await asyncio.to_thread(receiver.trace, "1" * 32, "llm_request", "engine", "prefill")
    told = b"".join(receiver.bodies)
    assert not [word for word in (b"alpine", b"beryllium", b"cornflower", b"delphi") if word in told]


def named(spans: list[Received], name: str) -> list[Received]:
    return [span for span in spans if span.name == name]
