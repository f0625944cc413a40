"""The delta channel: engine replicas connect to a gateway and send it, once a step, the deltas of
all its requests.

The first frame (`cluster/sockets`) of a connection is the gateway's token and the name that the
engine gives the connection; the gateway answers with one byte, and never again. Every other frame
is a msgpack `News`: deltas, or the replica's report on itself, which is sent even if nothing else
is. A replica that exits is noticed by the end of the connection; one that is frozen by its silence
and that of its witness (`cluster/replica/witness`), which has a connection of its own: the same
first frame and one more byte, then empty frames.
"""

import asyncio
from dataclasses import dataclass, field

import msgspec

from cluster.sockets import LENGTH
from engine.outputs import RequestOutput
from engine.queue_limits import QueueLimits
from engine.records.stats import EngineStats

NAME_BYTES = 16  # of a connection's name, in hexadecimal
HELLO_SECONDS = 5.0
OF_A_WITNESS = b"w"  # after the token and the name
WELCOME = b"\x01"


@dataclass(frozen=True, slots=True)
class EngineReport:
    """An engine replica's condition. `problem`: one line on why it cannot answer now; `pid` is its
    process on `node`.
    """

    replica: str
    node: str
    pid: int
    problem: str | None
    stats: EngineStats
    fingerprint: str = ""
    arithmetic: dict[str, str] = field(default_factory=dict)  # what the fingerprint is computed from
    limits: QueueLimits | None = None


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where a gateway accepts deltas, and the token that it requires first."""

    host: str
    port: int
    token: bytes = field(repr=False)


class News(msgspec.Struct, array_like=True):
    """The content of one frame."""

    deltas: list[RequestOutput]
    report: EngineReport | None = None


async def read_frame(reader: asyncio.StreamReader, limit: int) -> bytes:
    """Raises IncompleteReadError, ConnectionError, or DecodeError for a frame that is too long."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > limit:
        raise msgspec.DecodeError(f"a frame of {length} bytes, at most {limit} are taken")
    return await reader.readexactly(length)
