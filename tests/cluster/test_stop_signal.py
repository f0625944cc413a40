"""SIGTERM in a process of its own."""

import signal
import subprocess
import sys

PROGRAM = """if True:
    import signal, sys, time
    from cluster.stop_signal import has_sigterm_come, note_sigterm

    note_sigterm()
    print(has_sigterm_come(), flush=True)
    sys.stdin.readline()
    print([has_sigterm_come(), has_sigterm_come(), signal.getitimer(signal.ITIMER_REAL)[0]], flush=True)
    sys.stdin.readline()
    print(15 >= signal.getitimer(signal.ITIMER_REAL)[0] > 0, flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    sys.stdin.readline()
"""


def test_sigterm_is_noted_once_and_ends_a_process_that_does_not_look() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        said = [process.stdout.readline()]
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            process.stdin.write("\n")
            process.stdin.flush()
            said.append(process.stdout.readline())
        assert said == ["False\n", "[True, False, 0.0]\n", "True\n"]
        assert process.wait() == -signal.SIGALRM


NOTED = """if True:
    import os, signal
    from cluster.stop_signal import StopSignal, ToldToStop

    stop = StopSignal()
    stop.check()
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(2):
        try:
            stop.check()
        except ToldToStop as told:
            print(told)
"""


def test_a_replica_that_got_a_sigterm_is_unhealthy_from_then_on() -> None:
    said = subprocess.run([sys.executable, "-c", NOTED], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["this process got a SIGTERM"] * 2
