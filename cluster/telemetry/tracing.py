"""The interface of a tracer. OpenTelemetry, which is one, is imported only if an endpoint is
configured.
"""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from engine.errors import InvalidConfig

Value = str | int | float | Sequence[str] | Sequence[float]


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The configuration of a gateway or an engine replica."""

    otlp_traces_endpoint: str | None = None  # URL that spans are sent to; None: none are made
    collect_detailed_traces: bool = False  # also a span for each of a request's last steps
    log_requests: bool = False  # a line for each request that ends


NO_TELEMETRY = Telemetry()


class Span(Protocol):
    """Something that takes time. Times are seconds of this process' time.monotonic()."""

    @property
    def is_recorded(self) -> bool:
        """Whether the trace is sampled: otherwise nothing of it is sent."""

    @property
    def headers(self) -> dict[str, str]:
        """By which another process makes spans below this one (W3C trace context)."""

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        """Something that happened now."""

    def child(self, name: str, start: float, end: float, attributes: Mapping[str, Value]) -> None:
        """A part of it, which is over."""

    def end(self, attributes: Mapping[str, Value], *, error: str | None = None, at: float | None = None) -> None:
        """It ends now, or ended then; `error` is the code of its failure."""


class Tracer(Protocol):
    """Makes spans, and sends them from a thread of its own."""

    def begin(self, name: str, parent: Mapping[str, str] | None) -> Span:
        """A span that begins now, below the one whose headers these are, or of a trace of its
        own.
        """

    def flush(self, seconds: float) -> None:
        """Send what has not been sent; blocks for as long at most."""


def make_tracer(telemetry: Telemetry, process: str) -> Tracer | None:
    """None if no endpoint is configured. `process` tells this process from others of its kind."""
    if telemetry.otlp_traces_endpoint is None:
        return None
    tracer: Any = importlib.import_module("cluster.telemetry.otlp")
    made: Tracer = tracer.OtlpTracer(telemetry.otlp_traces_endpoint, process)
    return made


def check_endpoint(endpoint: str | None) -> None:
    """Raises InvalidConfig unless spans can be sent there."""
    if endpoint is None:
        return
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise InvalidConfig("otlp_traces_endpoint is not a URL such as http://127.0.0.1:4318/v1/traces")
    if url.username is not None:
        raise InvalidConfig("otlp_traces_endpoint holds a user; keys belong into OTEL_EXPORTER_OTLP_TRACES_HEADERS")
    for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        if not _is_there(package):
            raise InvalidConfig(f"otlp_traces_endpoint needs the package {package}: pip install 'squadron-serve[otel]'")


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
