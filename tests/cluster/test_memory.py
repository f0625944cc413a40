"""How much memory there is, by what Linux says of the machine and of a container; and what fits."""

from pathlib import Path

import pytest

from cluster.memory import available_memory, check_memory
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


def test_there_is_some_memory_here() -> None:
    assert available_memory() > 1 << 20


def test_what_fits_is_taken_and_what_does_not_is_refused_with_figures() -> None:
    gib = 1 << 30
    check_memory("this machine", 2, 4 * gib, gib, 8 * gib)  # weights may be kept in twelve bits
    refusal = (
        r"2 rank\(s\) need 4 GiB of weights and 1 GiB of cache each, together 10 GiB, and node 10.0.0.1 has "
        "7 GiB of memory available"
    )
    with pytest.raises(InvalidConfig, match=refusal):
        check_memory("node 10.0.0.1", 2, 4 * gib, gib, 7 * gib)
