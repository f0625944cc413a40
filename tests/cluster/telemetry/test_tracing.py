"""Where spans are sent, and that nothing is imported where they are not."""

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.launch.packages import ROOT
from cluster.telemetry.tracing import NO_TELEMETRY, check_endpoint, make_tracer
from engine.errors import InvalidConfig


def test_without_an_endpoint_there_is_no_tracer_and_no_import() -> None:
    assert make_tracer(NO_TELEMETRY, "here") is None
    program = (
        "import sys, cluster.gateway.deployment, cluster.replica.deployment, cluster.launch.app; "
        "from cluster.telemetry.tracing import *; make_tracer(NO_TELEMETRY, 'here'); "
        "print([name for name in sys.modules if name.startswith('opentelemetry.exporter.otlp')])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("endpoint", "sentence"),
    [
        ("127.0.0.1:4318", "is not a URL such as"),
        ("grpc://127.0.0.1:4317", "is not a URL such as"),
        ("http:///v1/traces", "is not a URL such as"),
        ("http://me:secret@127.0.0.1:4318/v1/traces", "holds a user; keys belong into"),
    ],
)
def test_refuses_endpoints(endpoint: str, sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence) as refused:
        check_endpoint(endpoint)
    assert "secret" not in str(refused.value)


def test_says_which_package_is_missing(tmp_path: Path) -> None:
    """In a process whose path has an `opentelemetry` without the parts that are needed."""
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").touch()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from cluster.telemetry.tracing import check_endpoint; "
        "check_endpoint('http://127.0.0.1:4318/v1/traces')"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert "needs the package opentelemetry.sdk: pip install 'squadron-serve[otel]'" in done.stderr
