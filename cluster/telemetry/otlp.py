"""Spans by OpenTelemetry's SDK."""

import threading
import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cluster.telemetry.otlp_provider import make_provider
from cluster.telemetry.tracing import Value
from cluster.version import VERSION

_propagator = TraceContextTextMapPropagator()


class OtlpTracer:
    """A `Tracer`. Spans that cannot be sent are dropped, beyond 2,048 that wait."""

    def __init__(self, endpoint: str, process: str) -> None:
        self._provider = make_provider(endpoint, process)
        self._tracer = self._provider.get_tracer("squadron", VERSION)

    def begin(self, name: str, parent: Mapping[str, str] | None) -> "OtlpSpan":
        context = _propagator.extract(parent or {}, context=Context())
        return OtlpSpan(self, self._tracer.start_span(name, context, SpanKind.SERVER))

    def child(self, parent: Span, name: str, start: float, end: float, attributes: Mapping[str, Value]) -> None:
        child = self._tracer.start_span(
            name, set_span_in_context(parent, Context()), attributes=attributes, start_time=_since_1970(start)
        )
        child.end(_since_1970(end))

    def flush(self, seconds: float) -> None:
        # The SDK's own limit of time is not kept: an endpoint that is silent would hold it up.
        flushing = threading.Thread(target=self._provider.force_flush, daemon=True)
        flushing.start()
        flushing.join(seconds)


class OtlpSpan:
    """A `Span`."""

    def __init__(self, tracer: OtlpTracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def is_recorded(self) -> bool:
        return self._span.is_recording()

    @property
    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        _propagator.inject(headers, set_span_in_context(self._span, Context()))
        return headers

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        self._span.add_event(name, attributes)

    def child(self, name: str, start: float, end: float, attributes: Mapping[str, Value]) -> None:
        self._tracer.child(self._span, name, start, end, attributes)

    def end(self, attributes: Mapping[str, Value], *, error: str | None = None, at: float | None = None) -> None:
        self._span.set_attributes(attributes)
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(None if at is None else _since_1970(at))


def _since_1970(moment: float) -> int:
    """Nanoseconds, of a moment of time.monotonic()."""
    return time.time_ns() - int((time.monotonic() - moment) * 1e9)
