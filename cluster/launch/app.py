"""The Serve application, from the `args` of a file in configs/serve."""

import importlib.util
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve

from cluster import owner
from cluster.api.edge.hosts import ANY, AllowedHosts, check_open
from cluster.api.edge.origins import check_origins
from cluster.api.keys.key_ring import KeyRing
from cluster.checkpoint.plan import make_plan
from cluster.gateway.deployment import GatewayDeployment
from cluster.launch.ray_cluster import ROOT
from cluster.logs import LogFormat, serve_logging
from cluster.replica.delta_channel.server import BUSY_TURNS, TURN_SECONDS
from cluster.replica.deployment import EngineDeployment
from cluster.telemetry.tracing import Telemetry, check_endpoint
from cluster.workers.placement import make_bundles
from engine.config import EngineConfig, explain
from engine.errors import InvalidConfig

APP_NAME = "squadron"
PACKAGES = ("engine", "parallel", "ops", "cluster")
MAX_ONGOING_REQUESTS = 100_000  # admission is up to the engine: Serve's own errors are not what clients expect
# Of gateways: Serve gives requests to the application in the event loop that has the connections,
# not in a thread beside it, to and from which every event would be passed.
ONE_LOOP = {"env_vars": {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}}
ENGINE_GRACE_SECONDS = 10.0  # for a replaced engine: its requests continue elsewhere after its step


class AppConfig(BaseModel):
    """The `args` of a file in configs/serve."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: dict[str, Any]  # of an EngineConfig; a relative `model` is looked for in the repository's folder
    num_engines: int = Field(1, ge=1)
    num_gateways: int = Field(1, ge=1)
    max_attempts: int = Field(3, ge=1)  # consecutive losses of engine replicas before a request fails
    patience: float = Field(300, gt=0)  # seconds that a request waits for a replica: enough for a new one to start
    max_queue_seconds: float = Field(10, ge=0)  # a request that would wait for longer is refused; 0: none is
    stream_resume: bool = False  # whether a client may resume a broken stream, by the last event it received
    strict_fields: bool = False  # whether a request with an unknown field is rejected; otherwise the answer names it
    stream_grace: float = Field(600, ge=0)  # seconds that a gateway which is replaced has for the streams it serves
    api_keys: tuple[str, ...] = ()  # of which clients show one; none here and in the file: everybody may ask
    allowed_hosts: tuple[str, ...] = (ANY,)  # names by which clients may ask, *.NAME for those below one, * for any
    allowed_origins: tuple[str, ...] = ()  # of web pages that browsers may send requests from; *: any
    otlp_traces_endpoint: str | None = None  # URL that spans are sent to, by OTLP over HTTP; None: there are none
    collect_detailed_traces: Literal["all"] | None = None  # all: a span for each of a request's last steps, too
    log_format: LogFormat = "text"  # of the logs of gateways and engine replicas
    enable_log_requests: bool = False  # a line in the gateway's log for each request that ends
    open_metrics: bool = False  # whether everybody may read /metrics; otherwise as /debug
    insecure_no_key: bool = False  # whether it may listen beyond loopback without keys, and let everybody in
    api_key_file: str | None = None  # more of them, with limits; read again whenever it changes

    @property
    def telemetry(self) -> Telemetry:
        return Telemetry(self.otlp_traces_endpoint, self.collect_detailed_traces is not None, self.enable_log_requests)


def build_app(args: dict[str, Any]) -> serve.Application:
    """The application: a gateway bound to an engine. `args` are those of an `AppConfig`; raises
    InvalidConfig.
    """
    check_packages()
    try:
        config = AppConfig(**args)
    except ValidationError as error:
        raise InvalidConfig(explain(error, list(AppConfig.model_fields))) from None
    engine_config = _engine_config(config)
    make_plan(engine_config)
    api_keys = KeyRing(config.api_keys, config.api_key_file)
    if api_keys and config.insecure_no_key:
        check_open("", has_keys=True, insecure_no_key=True)
    AllowedHosts(config.allowed_hosts)
    check_origins(config.allowed_origins)
    check_endpoint(config.otlp_traces_endpoint)
    return serve.deployment(
        serve.ingress()(GatewayDeployment),
        num_replicas=config.num_gateways,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        logging_config=serve_logging(config.log_format),
        ray_actor_options={"num_cpus": 0.1, "runtime_env": ONE_LOOP},
        health_check_period_s=1,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=config.stream_grace,
    ).bind(
        _engines(config, engine_config),
        owner.this_process(),
        engine_config.model_name,
        api_keys,
        config.allowed_hosts,
        config.allowed_origins,
        config.num_gateways,
        config.max_attempts,
        config.patience,
        config.max_queue_seconds,
        config.stream_resume,
        config.insecure_no_key,
        config.open_metrics,
        config.strict_fields,
        config.telemetry,
    )


def _engine_config(config: AppConfig) -> EngineConfig:
    """Raises InvalidConfig."""
    engine = dict(config.engine)
    if isinstance(engine.get("model"), str):
        path = ROOT / engine["model"]
        engine["model"] = str(path) if path.parent.exists() else engine["model"]
    return EngineConfig.create(**engine)


def _engines(config: AppConfig, engine_config: EngineConfig) -> serve.Application:
    return serve.deployment(
        EngineDeployment,
        num_replicas=config.num_engines,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        max_constructor_retry_count=1,  # a start that failed once would fail again
        logging_config=serve_logging(
            config.log_format, logs_calls=False
        ),  # no log line per call: there are several per second
        health_check_period_s=0.5,
        # Three consecutive checks have to fail. Gateways notice dead replicas much sooner; this
        # must not end one that they know to be busy.
        health_check_timeout_s=BUSY_TURNS * TURN_SECONDS / 3,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=ENGINE_GRACE_SECONDS,
        **make_bundles(engine_config),
    ).bind(engine_config, owner.this_process(), config.telemetry)


def check_packages() -> None:
    """Raises InvalidConfig unless `engine`, `parallel`, `ops` and `cluster` are all ours: other
    packages may have these common names.
    """
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parent.parent != ROOT:
            found = "nowhere" if spec is None else spec.origin
            raise InvalidConfig(f"package {name!r} is found in {found}, not in {ROOT}: another package has its name")
