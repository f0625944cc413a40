"""A hub with the demo model, and a node's folder for what is fetched."""

import subprocess
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("file systems can be mounted by root only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def resize(disk: Path, size: str) -> None:
    """The file system of `small_disk`."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
