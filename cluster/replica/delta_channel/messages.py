"""The delta channel: engine replicas connect to a gateway and send it, once a step, the deltas of
all its requests.

The first frame (`cluster/sockets`) of a connection is the gateway's token and the name that the
engine gives the connection; the gateway answers with one byte, and never again. Every other frame
is a msgpack `News`: deltas, or the replica's report on itself, which is sent even if nothing else
is. Most deltas are one choice's next token with its text and nothing else; these travel as
`PlainDelta`, a few dozen bytes each.

A replica that exits is noticed by the end of the connection; one that is frozen by its silence and
that of its witness (`witness`), which has a connection of its own: the same first frame and one
more byte, then empty frames.
"""

import asyncio
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from cluster.replica.refusals.refusal import Refusal
from cluster.replica.totals import EngineTotals
from cluster.sockets import LENGTH, frame
from engine.admission.queue_limits import QueueLimits
from engine.outputs import CompletionOutput, RequestOutput
from engine.records.stats import EngineStats

NAME_BYTES = 16  # of a connection's name, which is written in hexadecimal
HELLO_SECONDS = 5.0
OF_A_WITNESS = b"w"  # after the token and the name
WELCOME = b"\x01"
IN_SHORT = ("replica", "node", "pid", "problem", "is_leaving", "computes_prompts")  # of a report, beside figures


@dataclass(frozen=True, slots=True)
class AdaptersInUse:
    """Names of adapters."""

    running: list[str]
    waiting: list[str]
    max_loras: int  # that may run at once


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
    totals: EngineTotals = field(default_factory=EngineTotals)
    is_leaving: bool = False  # it is to end, and serves until the next one is ready
    weights_number: int = 0  # of the last change of its weights: the higher one is newer
    weights_version: str | None = None  # None: it has the model's own
    computes_prompts: bool = False  # for other replicas, which answer
    num_cleared: int = 0  # how many times its cache has lost all that it held
    blocks_at: str | None = None  # where it serves what it computes to other nodes: see `engine.offload.peers`
    sleep_level: int = 0  # 0: awake
    adapters: AdaptersInUse | None = None  # of its requests; None: it takes none
    cache: dict[str, str] = field(default_factory=dict)  # as it is configured, by the names that vLLM has for it
    is_frozen: bool = False  # it begins no step: it is paused, sleeps, or gets other weights
    blocks_served: dict[str, int] = field(default_factory=dict)  # to ranks on other nodes: see `Answers`

    def in_short(self) -> dict[str, Any]:
        """Without histograms and other totals."""
        named = {name: getattr(self, name) for name in IN_SHORT}
        return named | {"made": self.totals.made, "stats": asdict(self.stats)}

    def as_dict(self) -> dict[str, Any]:
        """For people."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where a gateway accepts deltas, and the token that it requires first."""

    host: str
    port: int
    token: bytes = field(repr=False)


class PlainDelta(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What most deltas are: the first choice's next tokens with their text, and nothing else. Never
    a request's first delta, nor its last.
    """

    request_id: str
    attempt: int
    first_index: int
    token_ids: list[int]
    text: str

    def as_output(self) -> RequestOutput:
        choice = CompletionOutput(0, self.text, self.token_ids, self.first_index)
        return RequestOutput(self.request_id, self.attempt, [], [choice], finished=False)


Delta = RequestOutput | PlainDelta


def as_sent(delta: RequestOutput) -> Delta:
    """The delta as it travels, once a gateway has what the first one says of the prompt."""
    if len(delta.outputs) != 1 or delta.finished or delta.prompt_token_ids or delta.max_tokens is not None:
        return delta
    (choice,) = delta.outputs
    has_more = (choice.index, choice.finish_reason, choice.logprobs, choice.cumulative_logprob) != (0, None, None, None)
    if has_more or (delta.prompt, delta.prompt_logprobs, delta.error) != (None, None, None):
        return delta
    return PlainDelta(delta.request_id, delta.attempt, choice.first_index, choice.token_ids, choice.text)


class Answer(msgspec.Struct, array_like=True):
    """A call's end: the last delta has been sent, or the request is refused."""

    number: int
    refusal: Refusal | None


class News(msgspec.Struct, array_like=True):
    """The content of one frame to a gateway."""

    deltas: list[Delta]
    report: EngineReport | None = None
    answers: list[Answer] = []
    num_gateways: int = 1  # that the replica is connected to; beside a report
    beginnings: bytes = b""  # of prompts that came from other gateways, one after the other
    lost: bytes = b""  # beginnings that its cache no longer has


def write_frame(writer: asyncio.StreamWriter, payload: bytes) -> None:
    """What a connection that has just ended is given is lost, like what was on its way: uvloop
    would raise RuntimeError.
    """
    if not writer.is_closing():
        writer.write(frame(payload))


async def read_frame(reader: asyncio.StreamReader, limit: int) -> bytes:
    """Raises IncompleteReadError, OSError (TimeoutError for a node that has vanished), or
    DecodeError for a frame that is too long.
    """
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > limit:
        raise msgspec.DecodeError(f"a frame of {length} bytes, at most {limit} are taken")
    return await reader.readexactly(length)
