"""A real HAProxy, with the configuration that Serve's manager writes, changed by our program."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from cluster.certificate import NO_CERTIFICATE, CertificateFiles
from cluster.ingress.closing import ask
from cluster.ingress.environment import BUFFER_BYTES, PROGRAM
from cluster.ingress.haproxy import HOST, NODE_ADDRESS
from cluster.sockets import LOOPBACK
from tests.end_to_end.conftest import free_port

SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class HAProxy:
    process: subprocess.Popen[bytes]
    port: int
    folder: Path

    @property
    def admin(self) -> str:
        return str(self.folder / "s")

    def connect(self, host: str = LOOPBACK) -> socket.socket:
        return socket.create_connection((host, self.port), timeout=SECONDS)


def configuration(folder: Path, port: int, gateways: list[int], fallback: int | None = None) -> Path:
    """As Serve writes it, for gateways at these ports."""
    servers = [ServerConfig(f"gateway-{place}", LOOPBACK, each) for place, each in enumerate(gateways)]
    last = None if fallback is None else ServerConfig("fallback", LOOPBACK, fallback)
    backend = BackendConfig("http-squadron", "/", servers=servers, fallback_server=last, app_name="squadron")
    config = HAProxyConfig(
        http_options=HTTPOptions(host=LOOPBACK, port=port),
        socket_path=str(folder / "s"),
        server_state_base=str(folder),
        server_state_file=str(folder / "state"),
        metrics_enabled=False,
        nbthread=1,
        bufsize=BUFFER_BYTES,
        timeout_server_s=3600,
        retry_on="conn-failure empty-response",
        observe_error_limit=1,
        health_check_inter="1s",
    )
    api = HAProxyApi(config, config_file_path=str(folder / "c"))
    api.set_backend_configs({backend.name: backend})
    api._generate_config_file_internal()
    return folder / "c"


@contextlib.contextmanager
def running(
    folder: Path,
    gateways: list[int],
    fallback: int | None = None,
    host: str = LOOPBACK,
    node_address: str = "",
    certificate: CertificateFiles = NO_CERTIFICATE,
) -> Iterator[HAProxy]:
    port = free_port()
    path = configuration(folder, port, gateways, fallback)
    process = subprocess.Popen(
        [*PROGRAM, "-db", "-f", path],
        env=os.environ | {HOST: host, NODE_ADDRESS: node_address} | certificate.environment,
        stderr=subprocess.PIPE,
    )
    haproxy = HAProxy(process, port, folder)
    try:
        wait_until_it_answers(haproxy)
        yield haproxy
    finally:
        process.kill()
        process.communicate()


def wait_until_it_answers(haproxy: HAProxy) -> None:
    while haproxy.process.poll() is None:
        with contextlib.suppress(OSError):
            if f"Pid: {haproxy.process.pid}\n" in ask(haproxy.admin, "show info"):
                return
    assert haproxy.process.stderr is not None
    raise AssertionError(haproxy.process.stderr.read().decode())
