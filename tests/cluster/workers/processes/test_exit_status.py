"""How a process ended is told of one that was never waited for, as Ray's workers are not."""

import os
import signal
import subprocess
import sys

import pytest

from cluster.workers.processes.exit_status import wait_for_exit_signal

LINUX = tuple(int(part) for part in os.uname().release.split(".")[:2])
SECONDS = 120.0


@pytest.mark.skipif(LINUX < (6, 15), reason="this Linux does not tell")
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("os._exit(3)", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", signal.SIGKILL),
        ("os.abort()", signal.SIGABRT),
    ],
)
def test_the_signal_is_told(end: str, expected: int) -> None:
    code = f"import os, signal; input(); {end}"
    # Below a shell that is replaced by a program that never waits.
    shell = [sys.executable, "-S", "-c", PARENT, code]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        assert wait_for_exit_signal(pidfd, 0.01) is None
        parent.stdin.write("\n")
        parent.stdin.close()
        assert wait_for_exit_signal(pidfd, SECONDS) == expected
        os.close(pidfd)


# As Ray's process does: it ignores the ends of its children.
PARENT = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", sys.argv[1]])
print(child.pid, flush=True)
child.wait()
"""
