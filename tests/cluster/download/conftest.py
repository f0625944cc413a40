"""A hub with the demo model, and a node's folder for what is fetched."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig
from tests.cluster.download.hub_server import SmallHub, small_hub

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"
NAME = "squadron/demo"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallHub]:
    with small_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        server.add(NAME, DEMO)
        yield server


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return EngineConfig.create(model=NAME, download_dir=str(tmp_path / "node"))
