"""`squadron make-checkpoint`, as far as it goes before it writes gigabytes."""

from pathlib import Path

import pytest

from cluster.checkpoint import shapes
from cluster.checkpoint.shapes import Shape
from cluster.cli import main
from tests.cluster.commands.failing import fails
from tests.corruptions import copy_demo


def test_a_checkpoint_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_demo(tmp_path / "model")
    before = (folder / "config.json").read_bytes()
    line = fails(capsys, "make-checkpoint", str(folder), "--like", "qwen2.5-0.5b")
    assert line.startswith(f"squadron make-checkpoint: {folder}")
    assert (folder / "config.json").read_bytes() == before


def test_what_was_made_can_be_planned_and_depends_on_the_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shapes.SHAPES, "qwen2.5-0.5b", Shape(128, 2, 4, 2, 96, 800, True))
    weights = []
    for name, seed in (("one", "1"), ("again", "1"), ("two", "2")):
        folder = tmp_path / name
        assert main(["make-checkpoint", str(folder), "--like", "qwen2.5-0.5b", "--seed", seed]) == 0
        weights.append((folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]
    assert main(["plan", str(folder), "--device", "cpu", "-tp", "2"]) == 0
    assert "ranks                 2 (TP=2 × PP=1)" in capsys.readouterr().out


@pytest.mark.parametrize("seed", ["-1", str(2**64)])
def test_a_seed_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: str) -> None:
    line = fails(capsys, "make-checkpoint", str(tmp_path / "model"), "--like", "qwen2.5-0.5b", "--seed", seed)
    assert line == f"squadron make-checkpoint: seed={seed} is not from 0 to {2**64 - 1}"
    assert not (tmp_path / "model").exists()
