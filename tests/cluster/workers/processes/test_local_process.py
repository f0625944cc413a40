"""A process is held as long as its descriptor is, and not mistaken for the next of its number."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cluster.workers.processes.local_process import LocalProcess
from cluster.workers.processes.process_state import read_start_time

SECONDS = 120.0


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def find(child: "subprocess.Popen[bytes]") -> LocalProcess:
    start_time = read_start_time(child.pid)
    assert start_time is not None
    found = LocalProcess.find(child.pid, start_time)
    assert found is not None
    return found


def test_it_is_found_by_number_and_start(child: "subprocess.Popen[bytes]") -> None:
    start_time = read_start_time(child.pid)
    assert start_time is not None
    assert LocalProcess.find(child.pid, start_time + 1) is None
    child.kill()
    child.wait(SECONDS)
    assert LocalProcess.find(child.pid, start_time) is None


def test_a_signal_stops_it(child: "subprocess.Popen[bytes]") -> None:
    found = find(child)
    assert not found.is_stopped
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert found.is_stopped
    found.close()


def test_once_closed_it_is_left_alone(child: "subprocess.Popen[bytes]") -> None:
    closed, found = find(child), find(child)
    closed.close()
    closed.close()
    closed.kill()
    assert closed.wait_for_exit_signal(SECONDS) is None
    assert child.poll() is None
    found.kill()
    assert child.wait(SECONDS) == -signal.SIGKILL
    found.kill()  # it has gone
    found.close()
