"""Calls to Serve: start, run the application, end."""

import logging
import re
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle

from cluster.gateway.stores import begin_anew, end_actors
from cluster.ingress.ingress import Ingress
from cluster.launch.app import APP_NAME
from cluster.launch.proxies import Proxies
from cluster.logs import LogFormat, serve_logging
from engine.errors import InvalidConfig

_OUR_EXCEPTION = re.compile(r"[\w.]+\.(InvalidConfig|WorkerLost): ")


def start_serve(ingress: Ingress, port: int, log_format: LogFormat) -> None:
    """Start Serve and its ingress. Raises InvalidConfig."""
    # It would warn about every answer that takes a tenth of a second.
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": ingress.serve_host, "port": port},
            logging_config=serve_logging(log_format),
            controller_options=ingress.controller_options,
        )
    except RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise InvalidConfig(f"{ingress.name} did not start: {reason}") from None


def start_serve_alone() -> None:
    """Start Serve without an ingress."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled", logging_config=serve_logging("text"))


def run(application: serve.Application) -> DeploymentHandle[Any]:
    """The application's gateways, once all is ready. It begins a run of its own, whatever a process
    that was lost has left. Raises InvalidConfig.
    """
    begin_anew(APP_NAME)
    try:
        return serve.run(application, name=APP_NAME, route_prefix="/")
    except RuntimeError as error:
        raise InvalidConfig(_why_not_started(str(error))) from None


def close_if_alone(proxies: Proxies) -> None:
    """Close their ports before Serve answers 404, unless it runs other applications. Raises what
    Ray does of one that is frozen.
    """
    if serve.status().applications.keys() <= {APP_NAME}:
        proxies.close()


def end_serve() -> None:
    """End the application; and Serve, unless it runs others."""
    serve.delete(APP_NAME)
    end_actors(APP_NAME)
    if not serve.status().applications:
        serve.shutdown()


def is_serve_up() -> bool:
    """On the cluster that this process is connected to."""
    status = serve.status()
    return bool(status.proxies or status.applications)


def check_serve_is_down() -> None:
    """Raises InvalidConfig if Serve is running: it would ignore our host and port, and its
    applications are not ours to replace.
    """
    # Where this process has used another cluster before, in which its job had the same number,
    # Serve would take that one's controller for this one's.
    serve.context._disconnect()
    status = serve.status()
    if status.proxies or status.applications:
        names = ", ".join(status.applications) or "nothing"
        raise InvalidConfig(
            f"Serve runs on this Ray cluster already, with its own host and port, and serves {names}; add Squadron to "
            "its configuration file (configs/serve has examples), or end it with `serve shutdown`"
        )


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
