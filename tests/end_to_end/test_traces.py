"""Spans of one request from several processes, at a real receiver."""

import secrets

import pytest

from tests.cluster.telemetry.receiver import Received
from tests.end_to_end.conftest import Server

QUESTION = [{"role": "user", "content": "Spell the word 'cornflower'."}]
CLIENT = "b7ad6b7169203331"


@pytest.mark.parametrize("by_handle", [False, True], ids=["http", "handle"])
def test_a_request_is_a_trace_below_its_clients(server: Server, by_handle: bool) -> None:
    trace_id = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace_id}-{CLIENT}-01"}
    if by_handle:
        asked = {"messages": QUESTION, "max_tokens": 8, "temperature": 0, "trace_headers": headers}
        answer_id = server.handle.chat.remote(asked).result()["request_id"]
    else:
        answer_id = (
            server.client()
            .chat.completions.create(
                model="demo", messages=QUESTION, max_tokens=8, temperature=0, extra_headers=headers
            )
            .id
        )
    spans = server.receiver.trace(trace_id, "llm_request", "engine", "queue", "prefill", "decode", "step")
    request, engine = (only(spans, name) for name in ("llm_request", "engine"))
    assert (request.parent_id, engine.parent_id) == (CLIENT, request.span_id)
    assert "GatewayDeployment" in request.process and "EngineDeployment" in engine.process
    assert {only(spans, name).parent_id for name in ("queue", "prefill", "decode")} == {engine.span_id}
    steps = [span for span in spans if span.name == "step"]
    assert {step.parent_id for step in steps} == {engine.span_id}
    assert all(len(step.attributes["squadron.rank_seconds"]) == 4 for step in steps)
    told = request.attributes
    assert (told["gen_ai.response.id"], told["gen_ai.request.model"]) == (answer_id, "demo")
    assert told["gen_ai.operation.name"] == "chat"
    assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.temperature"]) == (8, 0.0)
    latencies = {name.rpartition(".")[2]: told[name] for name in told if name.startswith("gen_ai.latency.")}
    parts = [latencies[f"time_in_model_{name}"] for name in ("prefill", "decode")]
    assert sum(parts) <= latencies["time_in_model_inference"] <= latencies["e2e"]
    assert min(latencies["time_in_scheduler"], latencies["time_in_model_execute"]) > 0
    num_computed = sum(step.attributes["squadron.num_tokens"] for step in steps)
    num_cached = told["gen_ai.usage.cache_read.input_tokens"]
    assert num_computed + num_cached >= told["gen_ai.usage.input_tokens"]
    assert not any(b"cornflower" in body for body in server.receiver.bodies)


def only(spans: list[Received], name: str) -> Received:
    (span,) = [span for span in spans if span.name == name]
    return span
