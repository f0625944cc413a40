"""Logs are kept when they were asked for or something failed, and go otherwise."""

import shutil
from pathlib import Path

import pytest
from ray._private.ray_logging import stdout_deduplicator

from cluster.launch.node.logs import SESSION_LOGS, KeptLogs, RayFolder, silence_ray
from engine.errors import InvalidConfig


def written(tmp_path: Path) -> Path:
    folder = tmp_path / "ray"
    (folder / SESSION_LOGS / "serve").mkdir(parents=True)
    (folder / SESSION_LOGS / "serve" / "replica.log").write_text("a line")
    return folder


def test_go_with_a_cluster_that_ends_as_it_should(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path)
    with pytest.raises(KeyboardInterrupt), RayFolder(folder, KeptLogs()):
        raise KeyboardInterrupt
    assert (folder.exists(), capsys.readouterr().out) == (False, "")


def test_stay_after_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path)
    with pytest.raises(InvalidConfig, match="why"), RayFolder(folder, KeptLogs()):
        raise InvalidConfig("why")
    kept = Path(capsys.readouterr().out.strip().removeprefix("The logs are in "))
    assert not folder.exists()
    assert (kept / "serve" / "replica.log").read_text() == "a line"
    shutil.rmtree(kept)


def test_stay_where_they_are_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, kept = written(tmp_path), tmp_path / "some" / "where"
    with RayFolder(folder, KeptLogs(kept)):
        pass
    assert (kept / "serve" / "replica.log").read_text() == "a line"
    assert capsys.readouterr().out == f"The logs are in {kept}\n"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfig, match=r"log_dir=.*/file/x cannot be made: Not a directory"):
        KeptLogs(tmp_path / "file" / "x")


def test_what_is_of_no_use_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdout_deduplicator, "skip_re", None)
    of_no_use = [
        "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem",
        "WARNING: 8 PYTHON worker processes have been started on node: 55b6 with address: 127.0.0.1, which is 4x the",
    ]
    batch = {"ip": "", "pid": "raylet", "job": "", "is_err": True, "lines": [*of_no_use, "WARNING: of use"]}
    silence_ray()
    (told,) = stdout_deduplicator.deduplicate(batch)  # type: ignore[arg-type]
    assert told["lines"] == ["WARNING: of use"]
