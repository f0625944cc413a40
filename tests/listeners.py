"""On which sockets a process listens, as the kernel tells."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest

LISTENING = "0A"  # the state, in /proc/net/tcp
IPV6 = Path("/proc/net/if_inet6")
IPV6_LOOPBACK = "::1"
needs_ipv6 = pytest.mark.skipif(not IPV6.exists() or not IPV6.read_text(), reason="no interface has an IPv6 address")


@dataclass(frozen=True, slots=True)
class Listener:
    process: str  # its command line
    host: str
    port: int


def listeners_of(pid: int) -> list[Listener]:
    """None of a process that has ended meanwhile."""
    process = Path(f"/proc/{pid}")
    try:
        title = (process / "cmdline").read_bytes().decode().replace("\0", " ").strip()
        inodes = sockets_of(process)
        lines = [line for family in ("tcp", "tcp6") for line in (process / "net" / family).read_text().splitlines()[1:]]
    except (FileNotFoundError, ProcessLookupError):
        return []
    found = []
    for line in lines:
        _, local, _, state, *rest = line.split()
        if state == LISTENING and rest[5] in inodes:
            host, _, port = local.partition(":")
            found.append(Listener(title, str(address_of(host)), int(port, 16)))
    return found


def sockets_of(process: Path) -> set[str]:
    """Their inodes."""
    found = set()
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if named := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor)):
                found.add(named[1])
    return found


def address_of(text: str) -> IPv4Address | IPv6Address:
    """Of the kernel's hexadecimal words, each in the machine's own order."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    return ip_address(b"".join(words))
