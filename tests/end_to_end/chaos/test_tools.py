"""The harness' own tools: which processes it may harm, and what it makes of measurements."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.processes import descendants, find, is_alive, send, title_of, usage
from tests.end_to_end.chaos.soak import slope

# A child that has a child; both wait for the end of their input.
FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A child of this process, and its child."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())


def test_only_processes_below_this_one_are_found(family: tuple[int, int]) -> None:
    child, grandchild = family
    assert {child, grandchild} <= set(descendants(os.getpid()))
    assert set(descendants(child)) == {grandchild}
    assert os.getpid() not in descendants(os.getpid())
    assert grandchild in find(sys.executable)
    assert find(sys.executable, root=grandchild) == []
    assert title_of(child).startswith(f"{sys.executable} -c")


def test_a_killed_process_is_not_alive_even_if_nobody_has_waited_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_alive(process.pid)
        assert send(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process.pid)
        assert process.pid not in find(sys.executable)
        process.wait()
        assert not send(process.pid, signal.SIGKILL)
        assert usage(process.pid) is None


def test_what_a_process_takes() -> None:
    before = usage(os.getpid())
    with open(os.devnull) as opened:
        held = bytearray(b"x" * (32 << 20))
        after = usage(os.getpid())
        assert before is not None
        assert after is not None
        assert after.num_descriptors == before.num_descriptors + 1
        assert after.memory_bytes >= before.memory_bytes + len(held) // 2
        assert after.num_threads >= 1
        assert not opened.closed


def test_slopes() -> None:
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == 2.0
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 1.0)]) == 0.0
    assert slope([(1.0, 1.0)]) == 0.0


def test_a_number_that_was_given_wins() -> None:
    assert [Options(quick=quick).pick(None, 8, 2) for quick in (False, True)] == [8, 2]
    assert Options(quick=True).pick(5, 8, 2) == 5
