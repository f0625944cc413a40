"""Spans over HTTP, in OpenTelemetry's protocol."""

import time

import pytest

from cluster.telemetry.otlp import OtlpTracer
from tests.cluster.telemetry.receiver import Receiver, receiving

PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "congo=t61rcWkgMzE"}


@pytest.fixture
def receiver() -> Receiver:
    with receiving() as receiver:
        yield receiver


def test_a_span_is_below_the_one_whose_headers_it_was_given(receiver: Receiver) -> None:
    tracer = OtlpTracer(receiver.url, "one")
    span = tracer.begin("outer", PARENT)
    below = OtlpTracer(receiver.url, "two")
    inner = below.begin("inner", span.headers)
    now = time.monotonic()
    inner.child("part", now - 2, now - 1, {"number": 5, "each": [0.5, 0.25]})
    inner.event("moved", {"attempt": 1})
    inner.end({"word": "x"})
    span.end({}, error="gone")
    assert span.headers["tracestate"] == "congo=t61rcWkgMzE"
    tracer.flush(10)
    below.flush(10)
    spans = {span.name: span for span in receiver.trace(PARENT["traceparent"][3:35], "outer", "inner", "part")}
    assert spans["outer"].parent_id == "b7ad6b7169203331"
    assert spans["inner"].parent_id == spans["outer"].span_id
    assert spans["part"].parent_id == spans["inner"].span_id
    assert [spans[name].process for name in ("outer", "inner")] == ["one", "two"]
    assert spans["part"].attributes == {"number": 5, "each": [0.5, 0.25]}
    assert spans["part"].end - spans["part"].start == pytest.approx(1, abs=1e-3)
    assert (spans["inner"].events, spans["inner"].attributes) == ([("moved", {"attempt": 1})], {"word": "x"})
    assert (spans["outer"].has_failed, spans["outer"].attributes) == (True, {"error.type": "gone"})


@pytest.mark.parametrize("parent", [None, {"traceparent": "nonsense"}, {"traceparent": "00-" + "0" * 32 + "-1-01"}])
def test_without_a_parent_a_trace_begins(receiver: Receiver, parent: dict[str, str] | None) -> None:
    tracer = OtlpTracer(receiver.url, "one")
    span = tracer.begin("alone", parent)
    span.end({})
    tracer.flush(10)
    (found,) = receiver.trace(span.headers["traceparent"][3:35], "alone")
    assert found.parent_id == ""


def test_a_trace_that_its_beginner_does_not_sample_is_not_sent(receiver: Receiver) -> None:
    tracer = OtlpTracer(receiver.url, "one")
    span = tracer.begin("unsampled", {"traceparent": PARENT["traceparent"][:-2] + "00"})
    assert not span.is_recorded and span.headers["traceparent"].endswith("-00")
    span.end({})
    tracer.flush(10)
    assert receiver.bodies == []


def test_a_silent_endpoint_holds_nothing_up() -> None:
    tracer = OtlpTracer("http://127.0.0.1:9/v1/traces", "one")
    span = tracer.begin("lost", None)
    span.end({})
    tracer.flush(0.01)
