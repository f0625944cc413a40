"""Which servers are refused before anything starts."""

from pathlib import Path

import pytest

from cluster.cli import main
from tests.cluster.certificates import make_authority
from tests.end_to_end.conftest import DEMO


def test_a_certificate_that_cannot_be_served_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = make_authority().issue(tmp_path, days=(-2, -1))
    options = {
        "expired at": [files.certfile, files.keyfile],
        "cannot be read: Is a directory": [str(tmp_path), files.keyfile],
        "has no private key in PEM": [files.certfile, files.certfile],
    }
    for reason, (certfile, keyfile) in options.items():
        assert main(["serve", str(DEMO), "--ssl-certfile", certfile, "--ssl-keyfile", keyfile]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("squadron serve: ssl_") and reason in line


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--allowed-origins", "ftp://host", "'ftp://host' is neither http(s)://HOST"),
        ("--allowed-hosts", "a/b", "'a/b' is neither a name or address"),
        ("--otlp-traces-endpoint", "nonsense", "is not a URL such as"),
        ("--files-path", "s4://bucket/folder", "'s4://bucket/folder' is in no store"),
    ],
)
def test_what_the_application_would_refuse_is_refused_before_ray_starts(
    option: str, value: str, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.commands.serve.ray_cluster", None)
    assert main(["serve", str(DEMO), option, value]) == 2
    assert reason in capsys.readouterr().err
