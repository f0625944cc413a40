"""What `squadron run-batch` refuses before it asks a server."""

from pathlib import Path

import pytest

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
