"""An OTLP receiver: takes spans over HTTP, as a collector does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SECONDS = 120.0  # more than spans take to arrive


@dataclass(frozen=True, slots=True)
class Received:
    """A span, ids in hexadecimal, times in seconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str  # empty: it has none
    start: float
    end: float
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    process: str  # service.instance.id
    has_failed: bool


@dataclass
class Receiver:
    url: str
    bodies: list[bytes] = field(default_factory=list)
    _spans: list[Received] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def add(self, body: bytes) -> None:
        with self._news:
            self.bodies.append(body)
            self._spans += read(body)
            self._news.notify_all()

    def trace(self, trace_id: str, *names: str) -> list[Received]:
        """The trace's spans, once there is one of each name, which may come several times."""
        with self._news:
            assert self._news.wait_for(lambda: _has(self._of(trace_id), names), SECONDS), self._of(trace_id)
            return self._of(trace_id)

    def _of(self, trace_id: str) -> list[Received]:
        return [span for span in self._spans if span.trace_id == trace_id]


def _has(spans: list[Received], names: tuple[str, ...]) -> bool:
    found = [span.name for span in spans]
    return all(found.count(name) >= names.count(name) for name in names)


def read(body: bytes) -> Iterator[Received]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        about = _values(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    start=span.start_time_unix_nano / 1e9,
                    end=span.end_time_unix_nano / 1e9,
                    attributes=_values(span.attributes),
                    events=[(event.name, _values(event.attributes)) for event in span.events],
                    process=about["service.instance.id"],
                    has_failed=span.status.code == span.status.STATUS_CODE_ERROR,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            receiver.add(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}/v1/traces")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
