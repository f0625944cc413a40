"""Another machine, as far as the network is concerned: a namespace with one cable to this one."""

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

HERE, THERE = "198.18.39.1", "198.18.39.2"  # of a network for tests (RFC 2544)
KNOCK = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), timeout=10).close()
    except OSError:
        continue
    print(port)
"""


_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class OtherMachine:
    pid: int  # of a process in the namespace

    def run(self, *command: str) -> str:
        """What it says there."""
        inside = ["nsenter", "--target", str(self.pid), "--net", *command]
        return subprocess.run(inside, check=True, capture_output=True, text=True, timeout=60).stdout

    def reaches(self, ports: set[int]) -> set[int]:
        """Those of this machine's on which it can connect."""
        return {int(port) for port in self.run(sys.executable, "-c", KNOCK, HERE, *map(str, sorted(ports))).split()}


def reached_at(host: str, ports: set[int]) -> set[int]:
    """Those on which this process can connect to an address."""
    found = subprocess.run(
        [sys.executable, "-c", KNOCK, host, *map(str, sorted(ports))], capture_output=True, text=True
    )
    return {int(port) for port in found.stdout.split()}


def network_address() -> str:
    """One of this machine's, off loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unconnected:
        try:
            unconnected.connect(("192.0.2.254", 9))
        except OSError:
            pytest.skip("this machine has no network")
        host: str = unconnected.getsockname()[0]
    return host


def why_not() -> str:
    """Why this machine can have no other one; "" if it can, which is tried."""
    if os.geteuid() != 0:
        return "namespaces of the network need root"
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]}"
    try:
        with other_machine():
            return ""
    except subprocess.CalledProcessError as error:
        return f"no namespace with a cable can be made: {error.stderr.decode(errors='replace').strip()}"


@contextlib.contextmanager
def other_machine() -> Iterator[OtherMachine]:
    """Raises CalledProcessError if the kernel has no namespaces or no virtual cables."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    # A name that none has: the kernel takes a cable away some time after its namespace.
    name = f"sq{os.getpid()}n{next(_numbers)}"
    cable, end = f"{name}a", f"{name}b"
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()  # it is in the namespace
        other = OtherMachine(holder.pid)
        run = ["ip", "link", "add", cable, "type", "veth", "peer", "name", end, "netns", str(holder.pid)]
        subprocess.run(run, check=True, capture_output=True)
        for command in (["addr", "add", f"{HERE}/30", "dev", cable], ["link", "set", cable, "up"]):
            subprocess.run(["ip", *command], check=True, capture_output=True)
        for command in (["addr", "add", f"{THERE}/30", "dev", end], ["link", "set", end, "up"]):
            other.run("ip", *command)
        try:
            yield other
        finally:
            assert holder.stdin is not None
            holder.stdin.close()  # the cable goes with the namespace
