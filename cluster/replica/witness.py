"""A small process beside an engine replica that tells gateways that the replica's process is there,
and not stopped.

A replica can be silent for seconds without being dead: whatever holds the interpreter's lock keeps
its event loop from reporting. Its witness shares nothing with it but the machine. It sees in /proc
that the process exists and that no signal has stopped it, and says a word (an empty frame of the
delta channel) to each gateway several times a second.

Over a pipe it is told of gateways, a line each: host, port and the greeting in hexadecimal. It ends
with the pipe. Of ours it imports only what needs no installed package, so that it starts in some
ten milliseconds and is small.
"""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from socket import create_connection

from cluster.sockets import frame
from cluster.workers.process_state import is_stopped, read_start_time, read_stat

WORD_SECONDS = 0.2
CONNECT_SECONDS = 5.0
WORD = frame(b"")
ROOT = Path(__file__).resolve().parents[2]


class Witness:
    """The replica's end, which keeps one such process there."""

    def __init__(self) -> None:
        self._gateways: dict[bytes, bytes] = {}  # what it was told, by the greeting
        self._process: subprocess.Popen[bytes] | None = None  # once there is a gateway

    def vouch(self, host: str, port: int, greeting: bytes) -> None:
        """Speak for this process to the gateway there from now on, until it closes the
        connection.
        """
        self._gateways[greeting] = f"{host} {port} {greeting.hex()}\n".encode()
        if self._process is None:
            self._process = _start()
        _tell(self._process, self._gateways[greeting])

    def forget(self, greeting: bytes) -> None:
        """The gateway that was greeted so has gone."""
        del self._gateways[greeting]

    def renew(self) -> None:
        """Replace the process if it has ended or was stopped."""
        if self._process is not None and _is_mute(self._process):
            self.close()
            self._process = _start()
            for line in self._gateways.values():
                _tell(self._process, line)

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.kill()
            self._process.wait()
            self._process = None


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-S", "-P", "-m", "cluster.replica.witness", str(os.getpid())],
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # Ctrl-C in a terminal is not for it
    )


def _is_mute(process: "subprocess.Popen[bytes]") -> bool:
    """Whether it says no more. Until it was waited for, its number is nobody else's."""
    return process.poll() is not None or read_stat(process.pid)[0] == "T"


def _tell(process: "subprocess.Popen[bytes]", line: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended: `renew` tells the next one
        process.stdin.write(line)


def main() -> None:
    """The process: until its pipe ends."""
    pid = int(sys.argv[1])
    start_time = read_start_time(pid)
    for line in sys.stdin:
        host, port, greeting = line.split()
        arguments = (pid, start_time, host, int(port), bytes.fromhex(greeting))
        threading.Thread(target=_speak, args=arguments, daemon=True).start()
    os._exit(0)


def _speak(pid: int, start_time: int | None, host: str, port: int, greeting: bytes) -> None:
    """To one gateway; each has a thread, so that one which does not answer keeps no word from
    another.
    """
    with suppress(OSError), create_connection((host, port), CONNECT_SECONDS) as gateway:
        gateway.sendall(frame(greeting))
        while start_time is not None and read_start_time(pid) == start_time:
            if not is_stopped(pid, start_time):
                gateway.sendall(WORD)
            time.sleep(WORD_SECONDS)


if __name__ == "__main__":
    main()
