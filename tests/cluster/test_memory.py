"""How much memory there is, by what Linux says of the machine and of a container; and what fits."""

from pathlib import Path

import pytest

from cluster.memory import available_memory, check_memory, total_memory
from engine.errors import InvalidConfig

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    2000000 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 2_048_000_000),
        ({"memory.max": "max\n", "memory.current": "5\n"}, 2_048_000_000),
        ({"memory.max": "3000\n", "memory.current": "2000\n"}, 1000),
        ({"memory.max": "3000\n", "memory.current": "2000\n", "memory.stat": "anon 9\ninactive_file 500\n"}, 1500),
        ({"memory.max": "9000000000000\n", "memory.current": "2000\n"}, 2_048_000_000),
    ],
)
def test_memory_is_what_machine_and_container_have(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert available_memory(tmp_path / "meminfo", tmp_path) == expected


LIMITED = {"memory.max": "3000\n", "memory.current": "2000\n", "memory.stat": "inactive_file 500\n"}
LIMITED_V1 = {
    "memory.limit_in_bytes": "3000\n",
    "memory.usage_in_bytes": "2000\n",
    "memory.stat": "inactive_file 7\ntotal_inactive_file 500\n",
}
OTHERS = "2:cpu,cpuacct:/\n1:name=systemd:/user.slice\n"


@pytest.mark.parametrize(
    ("group", "files", "own"),
    [
        pytest.param("system.slice/a.service", LIMITED, "0::/system.slice/a.service\n", id="a service"),
        pytest.param("system.slice", LIMITED, "0::/system.slice/a.service\n", id="a slice"),
        pytest.param("memory", LIMITED_V1, f"4:memory:/docker/c\n{OTHERS}0::/\n", id="a container, version 1"),
        pytest.param("memory/a.service", LIMITED_V1, f"4:memory:/a.service\n{OTHERS}", id="a service, version 1"),
    ],
)
def test_the_limit_may_be_of_any_group_that_the_process_is_in(
    tmp_path: Path, group: str, files: dict[str, str], own: str
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "own").write_text(own)
    (tmp_path / group).mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / group / name).write_text(text)
    places = tmp_path / "meminfo", tmp_path, tmp_path / "own"
    assert available_memory(*places) == 1500
    assert total_memory(*places) == 3000


def test_there_is_some_memory_here() -> None:
    assert total_memory() > available_memory() > 1 << 20


def test_what_fits_is_taken_and_what_does_not_is_refused_with_figures() -> None:
    gib = 1 << 30
    check_memory("this machine", 2, 4 * gib, gib, 8 * gib)  # weights may be kept in twelve bits
    refusal = (
        r"2 rank\(s\) need 4 GiB of weights and 1 GiB of cache each, together 10 GiB, and node 10.0.0.1 has "
        "7 GiB of memory available"
    )
    with pytest.raises(InvalidConfig, match=refusal):
        check_memory("node 10.0.0.1", 2, 4 * gib, gib, 7 * gib)
