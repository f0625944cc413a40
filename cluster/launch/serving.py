"""Starts the application on a cluster, and ends it in order."""

import contextlib
import logging
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cluster import owner
from cluster.certificate import CertificateFiles
from cluster.gateway.streams.stream_store import end_stream_store
from cluster.ingress.choice import DEFAULT_WISH, Ingress, Wish, listening
from cluster.launch.app import APP_NAME
from cluster.launch.proxies import Proxies
from cluster.launch.ray_processes import answers, do_within
from cluster.logs import LogFormat, serve_logging
from cluster.replica.deployment import EngineDeployment
from engine.errors import ClusterLost, InvalidConfig

DRAIN_SECONDS = 20.0  # for running requests, at the end
STOP_SECONDS = 5.0  # for engines and their workers
CLOSE_SECONDS = 5.0  # for Serve's proxies, which still send what gateways have ended
SERVE_SECONDS = 5.0  # for Serve itself
_OUR_EXCEPTION = re.compile(r"[\w.]+\.(InvalidConfig|WorkerLost): ")


@dataclass(frozen=True, slots=True)
class Serving:
    """A running application."""

    gateways: DeploymentHandle[Any]
    ingress: Ingress


@contextlib.contextmanager
def serving(
    application: serve.Application,
    *,
    host: str,
    port: int,
    ends_serve: bool = False,
    ingress: Wish = DEFAULT_WISH,
    certificate: CertificateFiles | None = None,
    log_format: LogFormat = "text",
) -> Iterator[Serving]:
    """The application on host:port, ready, for as long as the context lasts; raises InvalidConfig
    if it does not start. `ends_serve`: stop Serve too, on a cluster that outlives the application,
    so that the next one may listen elsewhere. `ingress`: what listens, by TLS if there is a
    `certificate`. `log_format`: of Serve's own logs.
    """
    logging.getLogger("ray.serve").setLevel(
        logging.ERROR
    )  # it would warn about every answer that takes a tenth of a second
    _check_that_serve_is_ours_to_start()
    with listening(ingress, host, certificate) as chosen:
        try:
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": chosen.serve_host, "port": port},
                logging_config=serve_logging(log_format),
                controller_options=chosen.controller_options,
            )
        except RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise InvalidConfig(f"{chosen.name} did not start: {reason}") from None
        with _started(application, f"{host}:{port}", ends_serve=ends_serve) as gateways:
            yield Serving(gateways, chosen)


@contextlib.contextmanager
def _started(application: serve.Application, address: str, *, ends_serve: bool) -> Iterator[DeploymentHandle[Any]]:
    proxies = Proxies()
    steps: list[Callable[[], None]] = []
    try:
        gateways = _run(application)
        replicas = _Replicas(gateways, serve.get_deployment_handle(EngineDeployment.__name__, APP_NAME))
        steps = [replicas.drain, replicas.stop]
        replicas.meet()
        proxies.meet()
        yield gateways
    except ClusterLost:
        steps = [replicas.drain]  # ending engines would wait for Ray; they will be killed soon
        raise
    finally:
        if ray.is_initialized():
            # On a cluster of our own the HTTP port: running requests can be finished after the
            # death of Ray's GCS.
            needed = ray.get_runtime_context().gcs_address if ends_serve else address
            do_within(steps, DRAIN_SECONDS + STOP_SECONDS, needed=needed)
            if ends_serve:
                do_within([lambda: _end_serve(proxies)], CLOSE_SECONDS + SERVE_SECONDS, needed=needed)
            elif answers(needed):
                do_within([proxies.close], CLOSE_SECONDS)


def _run(application: serve.Application) -> DeploymentHandle[Any]:
    try:
        return serve.run(application, name=APP_NAME, route_prefix="/")
    except RuntimeError as error:
        raise InvalidConfig(_why_not_started(str(error))) from None


@dataclass(frozen=True, slots=True)
class _Replicas:
    """Handles of the application's deployments, by which it can be ended in order even when Ray's
    GCS has died.
    """

    gateways: DeploymentHandle[Any]
    engines: DeploymentHandle[Any]

    def meet(self) -> None:
        """Find the replicas, while Ray's GCS can still be asked."""
        for call in (self.gateways.broadcast("why_here", ""), self.engines.broadcast("stats")):
            # A replica that has just died will be replaced by one that is not known here.
            with contextlib.suppress(TimeoutError, RayServeException):
                call.results(timeout_s=STOP_SECONDS, return_exceptions=True)

    def drain(self) -> None:
        """Have the gateways finish running requests and reject new ones, until the proxies do
        so.
        """
        response = self.gateways.broadcast("drain", owner.this_process(), DRAIN_SECONDS)
        response.results(timeout_s=DRAIN_SECONDS + 2, return_exceptions=True)

    def stop(self) -> None:
        """Have the engines end their workers."""
        self.engines.broadcast("stop", owner.this_process()).results(timeout_s=STOP_SECONDS, return_exceptions=True)


def _end_serve(proxies: Proxies) -> None:
    if serve.status().applications.keys() <= {APP_NAME}:
        proxies.close()  # before Serve answers 404
    serve.delete(APP_NAME)
    end_stream_store(APP_NAME)
    if not serve.status().applications:
        serve.shutdown()


def _check_that_serve_is_ours_to_start() -> None:
    """Raises InvalidConfig if Serve is running: it would ignore our host and port, and its
    applications are not ours to replace.
    """
    status = serve.status()
    if status.proxies or status.applications:
        names = ", ".join(status.applications) or "nothing"
        raise InvalidConfig(
            f"Serve runs on this Ray cluster already, with its own host and port, and serves {names}; add Squadron to "
            "its configuration file (configs/serve has examples), or end it with `serve shutdown`"
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
    """The last of our own exceptions in Serve's message, or its last line: after the exception
    Serve may add that a start took long.
    """
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    ours = [line for line in lines if _OUR_EXCEPTION.match(line)]
    return _OUR_EXCEPTION.sub("", (ours or lines)[-1])
