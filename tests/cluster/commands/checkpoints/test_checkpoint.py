"""`squadron checkpoint`: a manifest is written, and files are compared with it."""

import os
from pathlib import Path

import pytest

from cluster.cli import main
from engine.checkpoint.manifest import MANIFEST_FILE
from tests.cluster.commands.failing import fails
from tests.corruptions import WEIGHTS, copy_demo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_demo(tmp_path / "model")


def test_files_match_the_manifest_that_was_made_of_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "manifest", str(folder)]) == 0
    made = capsys.readouterr().out
    assert made.startswith(f"{folder}/{MANIFEST_FILE}: ")
    assert main(["checkpoint", "verify", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder}: {made.split(': ')[1].split(' and ')[0]} and ")


def test_one_bit_is_noticed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "manifest", str(folder)]) == 0
    weights = bytearray((folder / WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (folder / WEIGHTS).write_bytes(weights)
    capsys.readouterr()
    assert MANIFEST_FILE in fails(capsys, "checkpoint", "verify", str(folder))


def test_without_a_manifest_there_is_nothing_to_compare_with(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, "checkpoint", "verify", str(folder))
    assert f"has no {MANIFEST_FILE}" in line
    assert line.endswith(f"`squadron checkpoint manifest {folder}` makes one from the current files")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write wherever it likes")
def test_a_manifest_in_a_folder_that_is_not_ours(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.chmod(0o555)
    line = fails(capsys, "checkpoint", "manifest", str(folder))
    assert line.endswith(f"{folder}/{MANIFEST_FILE} cannot be written: no permission to write to the folder")
