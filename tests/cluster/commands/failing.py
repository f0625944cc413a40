"""Commands that fail."""

import pytest

from cluster.cli import main


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line
