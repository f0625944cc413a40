"""A small process beside an engine replica that tells gateways that the replica's process exists
and is not stopped.

A replica can be silent for seconds without being dead: anything that holds the interpreter lock
keeps its event loop from reporting. Its witness shares only the machine with it. It sees in /proc
that the process exists and is not stopped by a signal, and sends an empty frame of the delta
channel to each gateway several times a second.

Over a pipe it gets one line per gateway: host, port and the greeting in hexadecimal. It exits when
the pipe is closed. It imports only modules of ours that need no installed package, so that it is
small and starts in some ten milliseconds.
"""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from socket import create_connection, socket

from cluster.sockets import frame
from cluster.workers.processes.process_state import is_stopped, read_start_time, read_stat

WORD_SECONDS = 0.2
CONNECT_SECONDS = 5.0
CONNECT_TRIES = 5
WORD = frame(b"")
ROOT = Path(__file__).resolve().parents[3]


class Witness:
    """The replica's end, which keeps one such process running."""

    def __init__(self) -> None:
        self._gateways: dict[bytes, bytes] = {}  # the lines it was sent, by greeting
        self._process: subprocess.Popen[bytes] | None = None  # once there is a gateway

    def vouch(self, host: str, port: int, greeting: bytes) -> None:
        """Vouch for this process to that gateway from now on, until it closes the connection. Where
        no process can be started now, `renew` tries again.
        """
        self._gateways[greeting] = f"{host} {port} {greeting.hex()}\n".encode()
        with suppress(OSError):
            if self._process is None:
                self._process = _start()
            _tell(self._process, self._gateways[greeting])

    def forget(self, greeting: bytes) -> None:
        """The gateway with that greeting is gone."""
        del self._gateways[greeting]

    def renew(self) -> None:
        """Replace the process if it has ended or was stopped. Where no process can be started now,
        the next call tries again.
        """
        with suppress(OSError):
            if self._process is not None and not _is_mute(self._process):
                return
            self.close()
            if self._gateways:
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
        [sys.executable, "-S", "-P", "-m", "cluster.replica.delta_channel.witness", str(os.getpid())],
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # so that Ctrl-C in a terminal does not reach it
    )


def _is_mute(process: "subprocess.Popen[bytes]") -> bool:
    """Whether it says no more. Until it was waited for, its number is nobody else's."""
    return process.poll() is not None or read_stat(process.pid)[0] == "T"


def _tell(process: "subprocess.Popen[bytes]", line: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended: `renew` starts another
        process.stdin.write(line)


def main() -> None:
    """The process: runs until its pipe is closed."""
    pid = int(sys.argv[1])
    start_time = read_start_time(pid)
    for line in sys.stdin:
        host, port, greeting = line.split()
        arguments = (pid, start_time, host, int(port), bytes.fromhex(greeting))
        threading.Thread(target=_speak, args=arguments, daemon=True).start()
    os._exit(0)


def _speak(pid: int, start_time: int | None, host: str, port: int, greeting: bytes) -> None:
    """Vouch to one gateway; each has a thread, so that a stuck gateway does not delay the
    others.
    """
    with suppress(OSError), _connection(host, port) as gateway:
        gateway.sendall(frame(greeting))
        while start_time is not None and read_start_time(pid) == start_time:
            if not is_stopped(pid, start_time):
                gateway.sendall(WORD)
            time.sleep(WORD_SECONDS)


def _connection(host: str, port: int) -> socket:
    """Raises OSError once the gateway, to which the replica is connected, has failed to answer
    CONNECT_TRIES times.
    """
    for _ in range(CONNECT_TRIES - 1):
        with suppress(OSError):
            return create_connection((host, port), CONNECT_SECONDS)
        time.sleep(WORD_SECONDS)
    return create_connection((host, port), CONNECT_SECONDS)


if __name__ == "__main__":
    main()
