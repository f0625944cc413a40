"""The network interfaces of this machine, with their addresses."""

import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

_SIOCGIFADDR = 0x8915
_NAME_BYTES = 15
_ADDRESS = slice(20, 24)  # of an ifreq, in network order


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    addresses: tuple[str, ...]
    mtu: int  # bytes

    def __str__(self) -> str:
        return f"{self.name} {', '.join(self.addresses) or '(no address)'}, MTU {self.mtu}"


def read_interfaces() -> tuple[Interface, ...]:
    """Of this network namespace. Of several IPv4 addresses of an interface, the first."""
    sixes = _ipv6_addresses()
    return tuple(
        Interface(name, (*_ipv4_address(name), *sixes.get(name, ())), _mtu(name)) for _, name in socket.if_nameindex()
    )


def _ipv4_address(name: str) -> tuple[str, ...]:
    request = struct.pack("256s", os.fsencode(name)[:_NAME_BYTES])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            return (socket.inet_ntoa(fcntl.ioctl(asking, _SIOCGIFADDR, request)[_ADDRESS]),)
        except OSError:
            return ()


def _ipv6_addresses() -> dict[str, tuple[str, ...]]:
    path, found = Path("/proc/net/if_inet6"), dict[str, tuple[str, ...]]()
    for line in path.read_bytes().splitlines() if path.exists() else []:
        digits, *_, encoded = line.split()
        name = os.fsdecode(encoded)  # as if_nameindex() does; it need not be ASCII
        found[name] = (*found.get(name, ()), str(IPv6Address(int(digits, 16))))
    return found


def _mtu(name: str) -> int:
    try:
        return int(Path(f"/sys/class/net/{name}/mtu").read_text(encoding="ascii"))
    except OSError:
        return 0
