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
