"""What is said and set on a node before Ray starts on it."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.api.front import listening
from cluster.ingress import haproxy, node
from cluster.ingress.environment import ENVIRONMENT, PROGRAM
from engine.errors import InvalidConfig

SHOWN = ("RAY_SERVE_ENABLE_HA_PROXY", haproxy.NODE_ADDRESS)


def set_by(*options: str, address: str) -> tuple[dict[str, str], str]:
    """The variables that a shell has afterwards, and what it printed."""
    script = f'I="$({sys.executable} -m cluster.ingress.node "$@")" && eval "$I" && env'
    environment = {"PATH": "/usr/bin:/bin", "NODE_IP": address}
    done = subprocess.run(["sh", "-c", script, "sh", *options], env=environment, capture_output=True, text=True)
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines()), done.stderr


def test_haproxy_listens_where_the_node_has_an_address() -> None:
    variables, said = set_by(address="127.0.0.1")
    assert said == "Ingress: HAProxy\n"
    assert {name: variables[name] for name in ENVIRONMENT} == ENVIRONMENT
    assert variables[haproxy.NODE_ADDRESS] == "127.0.0.1"
    launcher = Path(variables["RAY_SERVE_HAPROXY_BINARY_PATH"])
    assert launcher.parent.stat().st_mode & 0o777 == 0o700
    assert launcher.stat().st_mode & 0o777 == 0o700 and f"exec {shlex.join(PROGRAM)} " in launcher.read_text()


@pytest.mark.parametrize(
    ("options", "address", "reason"),
    [(["--ingress", "proxy"], "127.0.0.1", "--ingress proxy"), ([], "", "NODE_IP, this node's address, is not set")],
    ids=["not wanted", "no address"],
)
def test_otherwise_serves_own_proxy_does(options: list[str], address: str, reason: str) -> None:
    variables, said = set_by(*options, address=address)
    assert said == f"Ingress: Serve's own proxy, not HAProxy: {reason}\n"
    assert {name: variables.get(name) for name in SHOWN} == dict(zip(SHOWN, ("0", None), strict=True))


def test_ray_is_not_started_without_haproxy_where_it_must_be() -> None:
    variables, said = set_by("--ingress", "haproxy", address="")
    assert (variables, said) == ({}, "ingress=haproxy cannot be had: NODE_IP, this node's address, is not set\n")


def test_a_node_without_haproxy_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidConfig, match="there is no HAProxy"):
        node.haproxy_environment("127.0.0.1")


def test_both_ends_know_the_variables() -> None:
    """HAProxy's program imports nothing of ours."""
    assert (haproxy.HOST, haproxy.NODE_ADDRESS) == (listening.HOST, listening.NODE_ADDRESS)
