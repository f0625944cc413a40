"""Machines made of namespaces, each with a network, processes, /tmp and /dev/shm of its own, and a
cable to one switch.

`enter` starts this program again in namespaces, in which it is the first process: the kernel ends
all that runs there, and takes the switch away, when it ends, however it ends. There the machines
are made: their first processes are `machine.sh`'s.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from select import select

from cluster.launch.packages import ROOT
from tests.end_to_end.chaos.processes import descendants

SCRIPT = Path(__file__).with_name("machine.sh")
NETWORK = "198.18.40"  # of a network for tests (RFC 2544)
OPERATOR = f"{NETWORK}.254"  # this program's own address
CACHE = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"  # kernels that are compiled already
SWITCH = "switch"
SHARED = "/mnt/shared"
BEGIN = f"""
mount -t tmpfs -o mode=755 machines {Path(SHARED).parent}
mkdir {SHARED}
ip link set lo up
ip link add {SWITCH} type bridge
ip addr add {OPERATOR}/24 dev {SWITCH}
ip link set {SWITCH} up
exec "$0" "$@"
"""
INSIDE = "SQUADRON_NAMESPACES"  # is set in the environment of a program that has been started again
START_SECONDS = 30.0
NAMESPACES = ["--net", "--pid", "--ipc", "--mount", "--mount-proc", "--fork", "--kill-child"]


def why_not() -> str:
    """Why there can be no machines here; "" if there can."""
    if os.geteuid() != 0:
        return "namespaces of network, processes and mounts need root"
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]}"
    tried = subprocess.run(["unshare", *NAMESPACES, "ip", "link", "add", SWITCH, "type", "bridge"], capture_output=True)
    return tried.stderr.decode().strip()


def enter() -> None:
    """Returns inside, where there is a switch with this program at one of its ports, and temporary
    files lie in a folder that all machines have. Outside, this program is run there instead, and
    SystemExit has its status.
    """
    if not is_inside():
        given = {INSIDE: "1", "TMPDIR": SHARED}
        command = ["unshare", *NAMESPACES, "bash", "-ec", BEGIN, sys.executable, *sys.orig_argv[1:]]
        raise SystemExit(subprocess.run(command, env=os.environ | given).returncode)


def is_inside() -> bool:
    return INSIDE in os.environ


@dataclass(frozen=True, slots=True)
class Machine:
    """One that runs."""

    name: str
    address: str
    process: "subprocess.Popen[str]"  # its first one's parent: `unshare`
    first: int  # process id of the first one, as seen from here

    @property
    def root(self) -> Path:
        """Its files, as seen from here."""
        return Path(f"/proc/{self.first}/root")

    def command(self, line: str) -> list[str]:
        """What runs a line of shell there, in the repository, as ssh would."""
        inside = ["nsenter", "--target", str(self.first), "--net", "--pid", "--ipc", "--mount"]
        session = ["HOME=/tmp/home", "TMPDIR=/tmp", f"XDG_CACHE_HOME={CACHE}", f"SSH_CONNECTION=- - {self.address} 22"]
        return [*inside, "env", "-C", str(ROOT), *session, "bash", "-c", line]

    def run(self, line: str, seconds: float = 120.0) -> str:
        """What a line of shell prints there. Raises CalledProcessError, TimeoutExpired."""
        command = self.command(line)
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr)
        done.check_returncode()
        return done.stdout

    def unplug(self) -> None:
        """Nothing arrives there or from there any more, nor is anybody told."""
        ip("link", "set", self.name, "down")

    def lose(self) -> None:
        """Without grace: first the cable, so that no other machine is told, then all processes."""
        self.unplug()
        self.end()

    def end(self) -> None:
        """The kernel kills what runs there with the first process."""
        if self.process.poll() is None:
            os.kill(self.first, signal.SIGKILL)
        self.process.wait()


def make_machine(name: str, number: int) -> Machine:
    """Ready, with a cable called `name` here and there. Raises CalledProcessError, TimeoutError."""
    address = f"{NETWORK}.{number}"
    process = subprocess.Popen(
        ["unshare", *NAMESPACES, str(SCRIPT), name, address],
        env=os.environ | {"KEPT": " ".join(_kept())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = _first_child(process.pid)
    ip("link", "add", name, "type", "veth", "peer", "name", name, "netns", str(first))
    ip("link", "set", name, "master", SWITCH)
    ip("link", "set", name, "up")
    readable, _, _ = select([process.stdout], [], [], START_SECONDS)
    if not readable or process.stdout.readline() != "ready\n":
        process.kill()
        raise TimeoutError(f"machine {name} did not start")
    return Machine(name, address, process, first)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _kept() -> Sequence[str]:
    return dict.fromkeys((str(ROOT), sys.prefix, sys.base_prefix, str(Path(sys.prefix).resolve())))


def _first_child(pid: int) -> int:
    """Once it is there."""
    while not (found := descendants(pid)):
        time.sleep(0.01)
    return found[0]
