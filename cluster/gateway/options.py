"""The options of gateways."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.api.models.aliases import Alias
from cluster.api.options import HttpOptions
from cluster.checkpoint.loadable import NO_LORA, Lora
from cluster.telemetry.tracing import NO_TELEMETRY, Telemetry


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Of one of an application's models."""

    name: str
    source: str  # where its weights are from: a folder, or a name of a hub's
    lora: Lora = NO_LORA
    prefill_min_tokens: int | None = None  # see `Prefill`; None: there are no engines for that
    prefill_is_shared: bool = True  # see `Prefill`
    starts_for_requests: bool = False  # whether there is no engine while there are no requests


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """The same for all of an application's."""

    models: tuple[ModelOptions, ...]  # one at least
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    max_attempts: int  # see `AttemptLimits`
    patience: float
    max_queue_seconds: float  # see `Door`
    stream_resume: bool  # whether clients may resume broken streams
    stored_response_seconds: float  # that a response is stored; 0: none is
    num_store_shards: int  # of the store of streams and responses
    files_path: str | None = None  # of files and batches; None: there are none
    http: HttpOptions = field(default_factory=HttpOptions)
    telemetry: Telemetry = NO_TELEMETRY
    kills_workers: bool = False  # whether the page may have it done: for demonstrations
