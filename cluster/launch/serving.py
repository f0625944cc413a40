"""Starts the application on a cluster, and shuts it down in order."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.certificate import CertificateFiles
from cluster.ingress.choice import DEFAULT_WISH, Wish, listening
from cluster.ingress.ingress import Ingress
from cluster.launch.running import running
from cluster.launch.serve_calls import check_serve_is_down, start_serve, start_serve_alone
from cluster.logs import LogFormat


@dataclass(frozen=True, slots=True)
class Serving:
    """A running application."""

    gateways: DeploymentHandle[Any]
    ingress: Ingress


@contextlib.contextmanager
def serving_handles(application: serve.Application) -> Iterator[DeploymentHandle[Any]]:
    """The application without HTTP, ready, for as long as the context lasts, on a cluster that ends
    with it; raises InvalidConfig if it does not start.
    """
    check_serve_is_down()
    start_serve_alone()
    with running(application, "", ends_serve=False) as gateways:
        yield gateways


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
    so that the next one may listen elsewhere. `ingress`: the program that listens, with TLS if
    there is a `certificate`. `log_format`: of Serve's own logs, and HAProxy's.
    """
    check_serve_is_down()
    with listening(ingress, host, certificate, log_format) as chosen:
        start_serve(chosen, port, log_format)
        with running(application, f"{host}:{port}", ends_serve=ends_serve) as gateways:
            yield Serving(gateways, chosen)
