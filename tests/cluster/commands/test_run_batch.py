"""What `squadron run-batch` refuses before it asks a server."""

from pathlib import Path

import pytest

from cluster.batch.files.parts import alone
from cluster.batch.files.place import Place
from cluster.cli import main


def test_an_output_that_is_a_folder_is_refused_before_anything_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("{}\n", encoding="utf-8")
    (tmp_path / "out").mkdir()
    arguments = ["-i", source, "-o", tmp_path / "out", "--base-url", "http://127.0.0.1:1", "--patience", "0.1"]
    assert main(["run-batch", *map(str, arguments)]) == 2
    assert f"output_file={tmp_path / 'out'} is a folder" in capsys.readouterr().err
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["in.jsonl", "out"]


def test_a_second_run_with_the_same_output_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("{}\n", encoding="utf-8")
    arguments = ["-i", source, "-o", tmp_path / "out", "--base-url", "http://127.0.0.1:1", "--patience", "0.1"]
    with alone(Place.at(str(tmp_path / "out.parts"))):
        assert main(["run-batch", *map(str, arguments)]) == 2
    assert f"another process writes answers to {tmp_path / 'out.parts'}" in capsys.readouterr().err
