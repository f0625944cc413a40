"""What HAProxy is told: the configuration that Serve has written, with our changes.

Serve's listens on every network interface for its own purposes, answers errors in plain text, and
waits indefinitely for the head of a request.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.headers.addressee import SERVER
from cluster.ingress.answer import Answer
from cluster.ingress.full_queue_rules import RULES

CERTIFICATE = "certificate.pem"  # beside the configuration: it and its key, as HAProxy wants them
FRONTEND = "http_frontend"
HANDSHAKE_SECONDS = 60
UNREAD_SECONDS = 60  # in which a client must take something of its answer, once what the kernel holds is full
APPLICATIONS = "backend http-"  # a backend is an application's
_DROPPED_SECTIONS = ("frontend prometheus", "listen stats", "backend default_backend")
# Splicing is for large answers, and takes a third of the files that a process may open.
_DROPPED_LINES = ("log ", "option httplog", "option log-health-checks", "option splice-", "errorfile ")
_LOCAL_SERVER = re.compile(r"(server \S+ )(?:127\.0\.0\.1|::1):")  # as Serve writes one of the same node


_LOST = Answer(
    "503 Service Unavailable",
    "gateway_lost",
    "The gateway that had this request was lost before the answer began; the request can be sent again",
    1,
)
_NO_GATEWAY = Answer("503 Service Unavailable", "not_ready", "No gateway is there; the request can be sent again", 1)
_NOT_FOUND = Answer("404 Not Found", "unknown_url", "There is nothing at this URL")
_CONNECT = Answer("405 Method Not Allowed", "method_not_supported", "This is not a proxy")
_SLOW = Answer("408 Request Timeout", "request_timeout", "The beginning of the request's body did not come within 10 s")
ERRORS = {  # of HAProxy's own; for a head that does not come it has a page that nothing changes
    400: Answer("400 Bad Request", "invalid_http", "This is not a request of HTTP/1.1, or its head is far too large"),
    408: _SLOW,
    502: _LOST,
    503: _NO_GATEWAY,
    504: _LOST,
}
_MORE: dict[str, list[str]] = {
    "global": [
        "tune.http.maxhdr 1024",  # header lines; the gateway limits their bytes
    ],
    "defaults": [
        "timeout http-request 10s",  # for a head, as in cluster/api/edge/connection.py
        "timeout check 5s",  # a gateway that is busy is there
        # A request is sent to another gateway only if all of it was here when the first one got it.
        "option http-buffer-request",
        f"http-send-name-header {SERVER}",  # at a retry the next server's
        "option http-ignore-probes",  # no answer to connections that send nothing
        "option clitcpka",  # so that the kernel notices peers that are gone without closing
        "option srvtcpka",
    ],
    f"frontend {FRONTEND}": [
        # By its text: of an address of IPv6 with one of IPv4 in it (6to4) HAProxy takes that one.
        "acl is_local src -m beg 127. ::ffff:127.",
        "acl is_local src -m str ::1",
        # A request from loopback without this header counts as local at the gateway.
        "http-request add-header x-forwarded-for %[src] unless is_local",
        f"{_CONNECT.rule()} if METH_CONNECT",
        f"{_NOT_FOUND.rule()} if {{ path_end -i /-/routes }}",
        "http-request del-header upgrade",  # an offer, which a server may ignore
        *RULES,
    ],
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where this HAProxy is."""

    folder: Path  # has the files of `ERRORS`
    host: str = ""  # the address to listen on, if it is not the one in Serve's configuration
    node_address: str = ""  # that gateways on this node listen on, if not on loopback
    has_certificate: bool = False


def rewritten(text: str, place: Place) -> str:
    """Serve's configuration with our changes."""
    lines: list[str] = []
    for name, body in _sections(text):
        if name.startswith(_DROPPED_SECTIONS):
            continue
        lines.append(name)
        lines += [f"    {line}" for line in _changed(name, body, place)]
        if name == "defaults":
            lines += [f"    errorfile {status} {place.folder / str(status)}" for status in ERRORS]
    lines.append("backend default_backend")
    lines.append(f"    {(_NOT_FOUND if APPLICATIONS in text else _NO_GATEWAY).rule()}")
    return "\n".join([*lines, ""])


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each section's first line, and the others without comments."""
    name, body = "", list[str]()
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if line[0].isspace():
            body.append(stripped)
        else:
            if name:
                yield name, body
            name, body = stripped, []
    if name:
        yield name, body


def _changed(name: str, body: list[str], place: Place) -> Iterator[str]:
    for line in body:
        if line.startswith("bind ") and name == f"frontend {FRONTEND}":
            yield _bind(line, place)
            if place.has_certificate:
                # The only limit of a TLS handshake. It does not apply while an answer is awaited.
                yield f"timeout client {HANDSHAKE_SECONDS}s"
            yield from _MORE[name]
        elif line.startswith("http-reuse "):
            # If a connection that was used before ends, HAProxy closes the client's without a word
            # instead of asking another gateway.
            yield "http-reuse never"
        elif line.startswith("server ") and place.node_address:
            yield _LOCAL_SERVER.sub(rf"\g<1>{place.node_address}:", line)
        elif line.startswith("stats socket "):
            yield re.sub(r"\bmode 666\b", "mode 600", line)
        elif not line.startswith(_DROPPED_LINES):
            yield line
    if name != f"frontend {FRONTEND}":
        yield from _MORE.get(name, [])


def _bind(line: str, place: Place) -> str:
    """HTTP/1.1 alone: it is what limits and tests are for. Whoever takes nothing of an answer for
    UNREAD_SECONDS is given up: HAProxy holds little of it, but the kernel up to some megabytes.
    """
    given, _, port = line.removeprefix("bind ").rpartition(":")
    host = place.host or given
    options = " v4v6" if host == "::" else ""
    if place.has_certificate:
        options += f" ssl crt {place.folder / CERTIFICATE} alpn http/1.1 ssl-min-ver TLSv1.2"
    return f"bind {host or '*'}:{port}{options} proto h1 tcp-ut {UNREAD_SECONDS}s"
