"""A checkpoint to damage."""

from pathlib import Path

import pytest

from tests.corruptions import copy_demo


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return copy_demo(tmp_path / "model")
