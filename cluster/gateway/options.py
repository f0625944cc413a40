"""The options of gateways."""

from dataclasses import dataclass, field

from cluster.api.options import HttpOptions
from cluster.checkpoint.loadable import NO_LORA, Lora
from cluster.telemetry.tracing import NO_TELEMETRY, Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """The same for all of an application's."""

    model_name: str
    max_attempts: int  # see `AttemptLimits`
    patience: float
    max_queue_seconds: float  # see `Door`
    stream_resume: bool  # whether clients may resume broken streams
    stored_response_seconds: float  # that a response is stored; 0: none is
    files_path: str | None = None  # of files and batches; None: there are none
    lora: Lora = NO_LORA
    http: HttpOptions = field(default_factory=HttpOptions)
    telemetry: Telemetry = NO_TELEMETRY
