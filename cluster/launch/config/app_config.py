"""The configuration of an application: the `args` of a file in configs/serve."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.api.edge.hosts import check_open
from cluster.api.keys.key_ring import KeyRing
from cluster.api.options import HttpOptions, check_hosts_and_origins
from cluster.gateway.options import GatewayOptions, ModelOptions
from cluster.launch.config.model_config import Aliases, Autoscaling, ModelConfig, checked_aliases
from cluster.launch.packages import check_files_path, check_packages
from cluster.logs import LogFormat
from cluster.telemetry.tracing import Telemetry, check_endpoint
from engine.config import LEAST_GIB, MOST_HOST_GIB, MOST_PROMPT, EngineConfig, Transport, explain
from engine.errors import InvalidConfig

MOST_STORE_SHARDS = 64
GATEWAYS_OF_A_STORE_SHARD = 8  # by default; docs/reliability.md has what one can do

_OF_ONE_MODEL = frozenset(ModelConfig.model_fields)


class AppConfig(BaseModel):
    """The `args` of a file in configs/serve."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    engine: dict[str, Any] | None = None  # of the only model, as in a `ModelConfig`; and so the next nine
    num_engines: int = Field(1, ge=1)
    autoscaling: Autoscaling | None = None
    num_prefill_engines: int = Field(0, ge=0)
    prefill_min_tokens: int = Field(512, ge=1, le=MOST_PROMPT)
    prefill_memory: float = Field(4.0, ge=LEAST_GIB, le=MOST_HOST_GIB)
    prefill_transport: Transport = "tcp"
    drain_memory: float = Field(4.0, ge=0, le=MOST_HOST_GIB)
    lora_modules: tuple[str, ...] = ()
    lora_roots: tuple[str, ...] = ()
    models: tuple[ModelConfig, ...] = ()  # instead of these; the first is for requests that name none
    aliases: Aliases = Field(default_factory=dict)  # other names of models; {MODEL: weight, ...} divides
    num_gateways: int = Field(1, ge=1)
    max_gpus: int | None = Field(None, ge=1)  # of the cluster once all nodes are there; None: those it has at the start
    max_attempts: int = Field(3, ge=1)  # consecutive losses of engine replicas before a request fails
    patience: float = Field(300, gt=0)  # seconds that a request waits for a replica: enough for a new one to start
    max_queue_seconds: float = Field(10, ge=0)  # a request that would wait for longer is refused; 0: none is
    stream_resume: bool = False  # whether a client may resume a broken stream, by the last event it received
    stored_response_seconds: float = Field(3600, ge=0, le=30 * 86_400)  # of /v1/responses; 0: none is stored
    # Of the store of streams and responses, each two processes; None: by the number of gateways.
    num_store_shards: int | None = Field(None, ge=1, le=MOST_STORE_SHARDS)
    enable_sleep_mode: bool = False  # whether /sleep, /wake_up, /pause and /resume exist, for all clients' requests
    strict_fields: bool = False  # whether a request with an unknown field is rejected; otherwise the answer names it
    stream_grace: float = Field(600, ge=0)  # seconds that a gateway which is replaced has for the streams it serves
    api_keys: tuple[str, ...] = ()  # of which clients show one; none here and in the file: no key is needed
    # Names by which clients may ask, *.NAME for those below one, * for any. None: `default_hosts`.
    allowed_hosts: tuple[str, ...] | None = None
    allowed_origins: tuple[str, ...] = ()  # of web pages that browsers may send requests from; *: any
    otlp_traces_endpoint: str | None = None  # URL that spans are sent to, by OTLP over HTTP; None: there are none
    collect_detailed_traces: Literal["all"] | None = None  # all: a span for each of a request's last steps, too
    log_format: LogFormat = "text"  # of the logs of gateways and engine replicas
    enable_log_requests: bool = False  # a line in the gateway's log for each request that ends
    open_metrics: bool = False  # whether any client may read /metrics; otherwise as /debug
    insecure_no_key: bool = False  # whether it may listen beyond loopback without keys
    files_path: str | None = None  # folder, here or in an object store, of files and batches; None: there are none
    api_key_file: str | None = None  # more of them, with limits; read again whenever it changes

    @property
    def telemetry(self) -> Telemetry:
        return Telemetry(self.otlp_traces_endpoint, self.collect_detailed_traces is not None, self.enable_log_requests)

    def all_models(self) -> tuple[ModelConfig, ...]:
        """One at least. Raises InvalidConfig."""
        if self.models and (own := _OF_ONE_MODEL & self.model_fields_set):
            raise InvalidConfig(f"{sorted(own)[0]} is of the only model; with models it is a key of each of them")
        if self.models:
            return self.models
        if self.engine is None:
            raise InvalidConfig("engine is required, or else models")
        values = {name: getattr(self, name) for name in _OF_ONE_MODEL & self.model_fields_set}
        return (ModelConfig(**values),)

    def deployment_names(self, kind: str, engines: list[EngineConfig]) -> list[str]:
        """Of a deployment for each model: with its name, if it is one of `models`, so that it keeps
        its deployment when others come or go. Raises InvalidConfig.
        """
        models = self.all_models()
        if not self.models:
            return [kind]
        names = [model.deployment_name(kind, engine) for model, engine in zip(models, engines, strict=True)]
        for name, engine in zip(names, engines, strict=True):
            if names.count(name) > 1:
                other = "served_model_name gives another"
                raise InvalidConfig(f"models: {engine.model_name!r} and another differ in signs only; {other}")
        return names

    def gateway_options(self, models: tuple[ModelOptions, ...], *, kills_workers: bool = False) -> GatewayOptions:
        """Raises InvalidConfig; see `check` and `checked_aliases`. `kills_workers` is no key of a
        file: nothing that is configured turns it on.
        """
        return GatewayOptions(
            models=models,
            aliases=checked_aliases(self.aliases, models),
            max_attempts=self.max_attempts,
            patience=self.patience,
            max_queue_seconds=self.max_queue_seconds,
            stream_resume=self.stream_resume,
            files_path=self.files_path,
            stored_response_seconds=self.stored_response_seconds,
            num_store_shards=self.num_store_shards or _usual_shards(self.num_gateways),
            http=HttpOptions(
                api_keys=self.check(),
                allowed_hosts=self.allowed_hosts,
                allowed_origins=self.allowed_origins,
                num_gateways=self.num_gateways,
                insecure_no_key=self.insecure_no_key,
                open_metrics=self.open_metrics,
                enable_sleep_mode=self.enable_sleep_mode,
                strict_fields=self.strict_fields,
            ),
            telemetry=self.telemetry,
            kills_workers=kills_workers,
        )

    def check(self) -> KeyRing:
        """The API keys. Raises InvalidConfig for invalid keys, hosts, origins or endpoint, and for
        missing packages.
        """
        api_keys = KeyRing(self.api_keys, self.api_key_file)
        if api_keys and self.insecure_no_key:
            check_open("", has_keys=True, insecure_no_key=True)
        check_hosts_and_origins(self.allowed_hosts, self.allowed_origins)
        if self.files_path is not None:
            check_files_path(self.files_path)
        check_endpoint(self.otlp_traces_endpoint)
        if self.collect_detailed_traces is not None and self.otlp_traces_endpoint is None:
            raise InvalidConfig("collect_detailed_traces=all is of no use without otlp_traces_endpoint")
        return api_keys


def _usual_shards(num_gateways: int) -> int:
    """Of the store, for so many gateways."""
    return min(-(-num_gateways // GATEWAYS_OF_A_STORE_SHARD), MOST_STORE_SHARDS)


def read_app_config(args: dict[str, Any]) -> AppConfig:
    """Raises InvalidConfig."""
    check_packages()
    try:
        config = AppConfig(**args)
    except ValidationError as error:
        raise InvalidConfig(explain(error, list(AppConfig.model_fields))) from None
    config.all_models()
    return config
