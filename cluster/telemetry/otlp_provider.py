"""OpenTelemetry's SDK, set to send spans by OTLP over HTTP. Its own environment variables hold
(OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_TRACES_HEADERS, ...).
"""

import os

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from cluster.version import VERSION

SEND_SECONDS = 1.0  # between two batches
_DELAY = "OTEL_BSP_SCHEDULE_DELAY"


def make_provider(endpoint: str, process: str) -> TracerProvider:
    """One of our own: Ray and Serve may have one in this process, of other spans. `process` tells
    this process from others of its kind.
    """
    about = {
        "service.name": "squadron",
        "service.version": VERSION,
        **OTELResourceDetector().detect().attributes,
        "service.instance.id": process,
    }
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    delay = None if _DELAY in os.environ else SEND_SECONDS * 1000
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint), schedule_delay_millis=delay))
    return provider
