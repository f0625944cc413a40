"""A process is known by its number and its start, and by neither alone."""

import os
import signal
import subprocess
import sys

import pytest

from cluster.workers.processes.process_state import is_stopped, read_start_time

SECONDS = 120.0


def test_a_stopped_process_is_known_by_its_start_too() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        start_time = read_start_time(child.pid)
        assert start_time is not None and not is_stopped(child.pid, start_time)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert is_stopped(child.pid, start_time) and not is_stopped(child.pid, start_time + 1)
        child.kill()
    assert read_start_time(child.pid) is None and not is_stopped(child.pid, start_time)


@pytest.mark.parametrize("name", [b"a) T 1 (b", "программа".encode()[:15]], ids=["as the end", "half a letter"])
def test_a_name_may_hold_anything(name: bytes) -> None:
    """Such as what ends the name in /proc, or, where Linux cuts a program's name, half a letter."""
    program = f"open('/proc/self/comm', 'wb').write({name!r}); print(flush=True); input()"
    command = [sys.executable, "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        start_time = read_start_time(child.pid)
        own = read_start_time(os.getpid())
        assert start_time is not None and own is not None and start_time >= own
        assert not is_stopped(child.pid, start_time)
        child.kill()
