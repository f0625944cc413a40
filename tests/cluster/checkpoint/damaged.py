"""How a damaged checkpoint is configured, and what commands say of it."""

import json
from pathlib import Path

import pytest

from cluster.cli import main
from engine.config import EngineConfig


def config_of(folder: Path) -> EngineConfig:
    return EngineConfig.create(model=str(folder), device="cpu", kv_cache_memory_bytes=8 << 20)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that fails."""
    capsys.readouterr()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    return line


def edit(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
