"""From a configuration to a running application: the Serve application, and a Ray cluster of this machine alone."""

import contextlib
import importlib.util
import logging
import math
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve
from ray._private.worker import BaseContext
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from cluster import owner
from cluster.api import proxy
from cluster.api.hosts import ANY, AllowedHosts
from cluster.api_keys import collect_api_keys
from cluster.delta_channel import BUSY_TURNS, TURN_SECONDS
from cluster.engine_deployment import EngineDeployment
from cluster.gateway_deployment import GatewayDeployment
from cluster.logs import RAY, KeptLogs, RayFolder, silence_deaths
from cluster.placement import CPUS_PER_WORKER, make_bundles
from cluster.plan import make_plan
from cluster.privacy import LOOPBACK_ONLY, starting_on_loopback, token_authentication
from cluster.ray_processes import RayProcesses, answers, attempt
from cluster.stream_journal import end_journal
from engine.config import EngineConfig, explain
from engine.errors import ClusterLost, InvalidConfig

APP_NAME = "squadron"
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("engine", "parallel", "ops", "cluster")
CPUS_BESIDE_WORKERS = 1  # logical ones, of gateways and drivers
MAX_ONGOING_REQUESTS = 100_000  # admission is the engine's: Serve's own refusals are not what clients expect
DRAIN_SECONDS = 20.0  # for requests that run when everything is to end
LINGER_SECONDS = 1.0  # for the last bytes of answers, which gateways have ended and Serve's proxy still sends
STOP_SECONDS = 5.0  # for engines and their workers
ENGINE_GRACE_SECONDS = 10.0  # for an engine that is replaced: its requests go on elsewhere after its step
OBJECT_STORE_BYTES = 128 << 20  # weights come from disk and steps travel over sockets

# What Ray and its processes read from the environment when they start; what is set already stays.
RAY_ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # else workers run at nice 15
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without GPUs keeps CUDA_VISIBLE_DEVICES as it is
    # Of use to a dashboard only, which such a cluster has not.
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    # glibc's: each of some forty threads would have a heap of its own, which never shrinks below its own peak.
    "MALLOC_ARENA_MAX": "2",
}
_OUR_EXCEPTION = re.compile(r"[\w.]+\.(InvalidConfig|WorkerLost): ")


class AppConfig(BaseModel):
    """The `args` of a file in configs/serve."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: dict[str, Any]  # of an EngineConfig; a relative `model` is looked for in the repository's folder
    num_engines: int = Field(1, ge=1)
    num_gateways: int = Field(1, ge=1)
    max_attempts: int = Field(3, ge=1)  # engine replicas lost in a row under a request, before its client hears of it
    patience: float = Field(300, gt=0)  # seconds that a request waits for a replica: what a new one needs to start
    stream_resume: bool = False  # whether a client may come back to a stream that broke, by the last event it had
    strict_fields: bool = False  # whether a request with a field that nobody knows is refused; else the answer names it
    stream_grace: float = Field(600, ge=0)  # seconds that a gateway which is replaced has for the streams it serves
    api_keys: tuple[str, ...] = ()  # of which clients show one; none here and in the file: everybody may ask
    allowed_hosts: tuple[str, ...] = (ANY,)  # names by which clients may ask, *.NAME for those below one, * for any
    api_key_file: str | None = None  # more of them, one a line; read where the application is built


def build_app(args: dict[str, Any]) -> serve.Application:
    """The application: a gateway bound to an engine. `args` are those of an `AppConfig`; raises InvalidConfig."""
    check_packages()
    try:
        config = AppConfig(**args)
    except ValidationError as error:
        raise InvalidConfig(explain(error, list(AppConfig.model_fields))) from None
    engine = dict(config.engine)
    if isinstance(engine.get("model"), str):
        path = ROOT / engine["model"]
        engine["model"] = str(path) if path.parent.exists() else engine["model"]
    engine_config = EngineConfig.create(**engine)
    make_plan(engine_config)
    api_keys = collect_api_keys(config.api_keys, config.api_key_file)
    AllowedHosts(config.allowed_hosts)
    engines = serve.deployment(
        EngineDeployment,
        num_replicas=config.num_engines,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        max_constructor_retry_count=1,  # what stops it once stops it again
        logging_config=LoggingConfig(
            enable_access_log=False
        ),  # a line for each call, of which there are several a second
        health_check_period_s=0.5,
        # Three in a row have to fail. Gateways find the dead much sooner; this must not end one that they know to be busy.
        health_check_timeout_s=BUSY_TURNS * TURN_SECONDS / 3,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=ENGINE_GRACE_SECONDS,
        **make_bundles(engine_config),
    ).bind(engine_config, owner.this_process())
    return serve.deployment(
        serve.ingress()(GatewayDeployment),
        num_replicas=config.num_gateways,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        ray_actor_options={"num_cpus": 0.1},
        health_check_period_s=1,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=config.stream_grace,
    ).bind(
        engines,
        owner.this_process(),
        engine_config.model_name,
        api_keys,
        config.allowed_hosts,
        config.max_attempts,
        config.patience,
        config.stream_resume,
        config.strict_fields,
    )


def check_packages() -> None:
    """Raises InvalidConfig unless `engine`, `parallel`, `ops` and `cluster` are all ours: the names are common ones."""
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parent.parent != ROOT:
            found = "nowhere" if spec is None else spec.origin
            raise InvalidConfig(f"package {name!r} is found in {found}, not in {ROOT}: another package has its name")


@dataclass(frozen=True, slots=True)
class RayCluster:
    """Where a cluster is, and what in a process' environment lets it in."""

    address: str
    environment: dict[str, str]
    logs: Path  # its folder of logs, on each node
    processes: RayProcesses | None  # its own; None where the cluster was there before

    def wait(self) -> None:
        """Wait until it is lost, which raises ClusterLost; for ever where the cluster was there before."""
        if self.processes is None:
            threading.Event().wait()
        else:
            raise self.processes.wait_for_loss()


@contextlib.contextmanager
def ray_cluster(
    address: str | None = None, *, num_workers: int = 1, kept_logs: KeptLogs | None = None
) -> Iterator[RayCluster]:
    """A connection to the Ray cluster at `address`, or to a new one of this machine alone, which ends with the context.

    A new one has room for `num_workers`, whatever the machine has: a worker's CPUs are Ray's logical ones. It is for this
    machine and this user alone (`privacy`). Its logs go with it unless they are to be `kept_logs`.
    """
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    handler = signal.getsignal(signal.SIGTERM)
    quiet = {
        "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, paths))}},
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    silence_deaths()
    with contextlib.ExitStack() as stack:
        environment: dict[str, str] = {}
        processes: RayProcesses | None = None
        if address is None:
            needed = math.ceil(num_workers * CPUS_PER_WORKER) + CPUS_BESIDE_WORKERS
            # Short: a socket's path has at most 107 bytes.
            folder = stack.enter_context(RayFolder(Path(tempfile.mkdtemp(prefix="squadron-", dir="/tmp")), kept_logs))
            environment = LOOPBACK_ONLY | stack.enter_context(token_authentication(folder))
            processes = RayProcesses()
            stack.callback(processes.shutdown)
            with processes.starting(), starting_on_loopback():
                context = _start(
                    num_cpus=max(os.cpu_count() or 1, needed),
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=str(folder / RAY),
                    **quiet,
                )
        else:
            context = _connect(address, quiet)
            stack.callback(ray.shutdown)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has put its own in its place
        logs = Path(context.address_info["session_dir"]) / "logs"
        yield RayCluster(context.address_info["address"], environment, logs, processes)


def _start(**options: Any) -> BaseContext:
    """A cluster of this machine; raises InvalidConfig if Ray gives its own processes up, as it does after half a minute."""
    try:
        return ray.init(address="local", **options)
    except (RuntimeError, ConnectionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidConfig(f"Ray did not start on this machine, which may be too busy or too full: {reason}") from None


def _connect(address: str, options: dict[str, Any]) -> BaseContext:
    """Raises InvalidConfig, at once where nothing listens: Ray would try for minutes."""
    is_named = address.rpartition(":")[2].isdecimal()  # "auto" has no port
    if is_named and not answers(address.removeprefix("ray://")):
        raise InvalidConfig(
            f"nothing answers at --ray-address {address}; is the port that of `ray start`, and the cluster up?"
        )
    try:
        return ray.init(address=address, **options)
    except ConnectionError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidConfig(f"no Ray cluster lets us in at --ray-address {address}: {reason}") from None


@contextlib.contextmanager
def serving(
    application: serve.Application, *, host: str, port: int, ends_serve: bool = False
) -> Iterator[DeploymentHandle[Any]]:
    """The application on host:port, ready, for as long as the context lasts; raises InvalidConfig if it does not start.

    `ends_serve`: leave no Serve behind, for a cluster that lasts longer; the next one may listen elsewhere.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it warns of every answer that took a tenth of a second
    _check_that_serve_is_ours_to_start()
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": host, "port": port},
        controller_options=proxy.CONTROLLER_OPTIONS,
    )
    steps = [_end_serve] if ends_serve else []
    try:
        gateways = _run(application)
        replicas = _Replicas(gateways, serve.get_deployment_handle(EngineDeployment.__name__, APP_NAME))
        steps = [replicas.drain, replicas.stop, *steps]
        replicas.meet()
        yield gateways
    except ClusterLost:
        steps = [replicas.drain]  # engines that end would wait for Ray; they are killed soon
        raise
    finally:
        if ray.is_initialized():
            # Of a cluster of our own the port: what has begun can be finished after the death of Ray's GCS.
            needed = ray.get_runtime_context().gcs_address if ends_serve else f"{host}:{port}"
            attempt(steps, DRAIN_SECONDS + 2 * STOP_SECONDS, needed=needed)


def _run(application: serve.Application) -> DeploymentHandle[Any]:
    try:
        return serve.run(application, name=APP_NAME, route_prefix="/")
    except RuntimeError as error:
        raise InvalidConfig(_why_not_started(str(error))) from None


@dataclass(frozen=True, slots=True)
class _Replicas:
    """Handles of the application's deployments, with which it can be ended in order even when Ray's GCS has died."""

    gateways: DeploymentHandle[Any]
    engines: DeploymentHandle[Any]

    def meet(self) -> None:
        """Learn who the replicas are, while there is somebody to tell."""
        for call in (self.gateways.broadcast("why_here", ""), self.engines.broadcast("stats")):
            # A replica that has just died is replaced, by one that is not known.
            with contextlib.suppress(TimeoutError, RayServeException):
                call.results(timeout_s=STOP_SECONDS, return_exceptions=True)

    def drain(self) -> None:
        """Have the gateways finish what they have begun and refuse the rest.

        They go on refusing until the whole cluster ends, or Serve: where Serve has no application any more, it tells clients
        that the page does not exist.
        """
        response = self.gateways.broadcast("drain", owner.this_process(), DRAIN_SECONDS)
        response.results(timeout_s=DRAIN_SECONDS + 2, return_exceptions=True)
        time.sleep(LINGER_SECONDS)

    def stop(self) -> None:
        """Have the engines end their workers."""
        self.engines.broadcast("stop", owner.this_process()).results(timeout_s=STOP_SECONDS, return_exceptions=True)


def _end_serve() -> None:
    serve.delete(APP_NAME)
    end_journal(APP_NAME)
    if not serve.status().applications:
        serve.shutdown()


def _check_that_serve_is_ours_to_start() -> None:
    """Raises InvalidConfig where Serve runs: it listens where it listens, and what it serves is not ours to replace."""
    status = serve.status()
    if status.proxies or status.applications:
        names = ", ".join(status.applications) or "nothing"
        raise InvalidConfig(
            f"Serve runs on this Ray cluster already, with its own host and port, and serves {names}; add Squadron to its "
            "configuration file (configs/serve has examples), or end it with `serve shutdown`"
        )


def check_port(host: str, port: int) -> None:
    """Raises InvalidConfig unless host:port can be listened on."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise InvalidConfig(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port"
            ) from None


def _why_not_started(text: str) -> str:
    messages = [deployment.message for deployment in serve.status().applications[APP_NAME].deployments.values()]
    return last_reason("\n".join([text, *messages]))


def last_reason(told: str) -> str:
    """The last of our own exceptions in what Serve tells, or else its last line: it may go on, that a start took long."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    ours = [line for line in lines if _OUR_EXCEPTION.match(line)]
    return _OUR_EXCEPTION.sub("", (ours or lines)[-1])
