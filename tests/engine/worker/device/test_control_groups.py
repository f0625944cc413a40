"""Where a process' control groups are."""

from pathlib import Path

import pytest

from engine.worker.device.control_groups import control_groups


@pytest.mark.parametrize(
    ("own", "folders"),
    [
        (None, [".", "cpu"]),
        ("0::/\n", [".", "cpu"]),
        ("0::/a.slice/b.service\n", ["a.slice/b.service", "a.slice", ".", "cpu"]),
        ("3:cpu,cpuacct:/docker/c\n1:name=systemd:/x\n0::/\n", [".", "cpu/docker/c", "cpu/docker", "cpu"]),
    ],
    ids=["unknown", "a container", "a service", "version 1"],
)
def test_they_are_the_own_one_and_those_around_it(tmp_path: Path, own: str | None, folders: list[str]) -> None:
    if own is not None:
        (tmp_path / "own").write_text(own)
    assert list(control_groups("cpu", tmp_path, tmp_path / "own")) == [tmp_path / each for each in folders]
