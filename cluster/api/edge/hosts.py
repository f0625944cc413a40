"""The host names a server answers to. A web page of evil.example may let that name point at this
machine, and its scripts can then send requests to servers here; these still have `Host:
evil.example` (DNS rebinding).
"""

import ipaddress
import re
from collections.abc import Iterable

from starlette.types import Scope

from cluster.api.keys.key_ring import API_KEY_VARIABLE
from engine.errors import InvalidConfig

ANY = "*"
FORWARDED = frozenset([b"x-forwarded-for", b"forwarded"])  # headers of a proxy that sends for another client
LOOPBACK_HOSTS = ("localhost", "*.localhost", "127.0.0.1", "::1")
_HEADER = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\[\]:/@\s]+)(:[0-9]*)?")
_NAME = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*")


class AllowedHosts:
    """Names and addresses without ports; `*.example.com` for every name below it, `*` for any."""

    def __init__(self, hosts: Iterable[str]) -> None:
        names = [_canonical(host) for host in hosts]
        if not names:
            raise InvalidConfig("allowed_hosts is empty: nobody could ask; '*' allows any")
        self._any = ANY in names
        self._names = frozenset(names)
        self._suffixes = tuple(name[1:] for name in names if name.startswith("*."))

    def allows(self, header: bytes) -> bool:
        """Whether the value of a Host header is one of them, with any port."""
        if self._any:
            return True
        found = _HEADER.fullmatch(header.decode("latin-1").lower())
        if found is None:
            return False
        name = found["name"].removesuffix(".")
        return name in self._names or name.endswith(self._suffixes)


def default_hosts(host: str) -> tuple[str, ...]:
    """For a server that listens on `host`: loopback's names if that is loopback; otherwise any,
    since only the operator knows its names.
    """
    return (*LOOPBACK_HOSTS, host) if is_loopback(host) else (ANY,)


def is_loopback(host: str) -> bool:
    """Whether a name or an address is loopback, which other machines cannot reach."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_local(scope: Scope) -> bool:
    """Whether the client is on this machine, and not a proxy."""
    host, _ = scope.get("client") or ("", 0)
    return is_loopback(host) and FORWARDED.isdisjoint(name for name, _ in scope["headers"])


def check_open(host: str, *, has_keys: bool, insecure_no_key: bool) -> None:
    """Raises InvalidConfig for a server that other machines reach and that needs no key, unless it
    is told so.
    """
    if has_keys and insecure_no_key:
        raise InvalidConfig("insecure_no_key is for a server without API keys, and there are some")
    if not has_keys and not is_loopback(host) and not insecure_no_key:
        raise InvalidConfig(
            f"host={host!r} can be reached from other machines, and there is no API key: give keys by --api-key-file "
            f"(api_key_file) or, to `squadron serve`, by {API_KEY_VARIABLE}; or say --insecure-no-key "
            "(insecure_no_key) to let everybody in"
        )


def _canonical(host: str) -> str:
    """In the form of a Host header; raises InvalidConfig."""
    name = host.lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        if name != ANY and not _NAME.fullmatch(name):
            raise InvalidConfig(
                f"allowed_hosts: {host!r} is neither a name or address without a port, nor *.NAME, nor *"
            ) from None
        return name
    return f"[{address}]" if address.version == 6 else str(address)
