"""Gateways as they choose: with the product's own memory, connections' counts and reports, and
nothing sent.
"""

import random
import time
from dataclasses import replace
from typing import Any, Protocol

from cluster.gateway.engines.calling import Calling
from cluster.replica.delta_channel.calls import ChannelCall, OpenCalls
from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import EngineReport, GatewayAddress
from engine.records.stats import EngineStats
from engine.request import Request
from tests.benchmarks.routing.engine import ScriptedEngine

STATS = EngineStats(**dict.fromkeys(EngineStats.__slots__, 0))


def _clock_seconds() -> float:
    """Processor time of a look at the clock: on some machines as much as what is measured."""
    started = time.process_time()
    for _ in range(NUM_LOOKS):
        time.process_time()
    return (time.process_time() - started) / NUM_LOOKS


NUM_LOOKS = 10_000
CLOCK_SECONDS = _clock_seconds()


class Nowhere:
    """A connection that takes everything."""

    def __init__(self) -> None:
        self.transport = self
        self.num_bytes = 0

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.num_bytes += len(data)


class Uncounted:
    """Serve, which is told of calls."""

    def count_call(self, replica: str, change: int) -> None:
        pass


class Connected:
    """A gateway's connections: for `Calling`, its `DeltaServer`."""

    def __init__(self, num_engines: int) -> None:
        self.known = [
            (EngineReport(f"replica-{index}", "node", 1, None, STATS), OpenCalls(str(index), Nowhere()))  # type: ignore[arg-type]
            for index in range(num_engines)
        ]

    def calls(self) -> list[tuple[EngineReport, OpenCalls]]:
        return list(self.known)

    def report(self, index: int, engine: ScriptedEngine, num_gateways: int) -> None:
        report, calls = self.known[index]
        stats = replace(STATS, num_seqs_running=len(engine.running), num_seqs_waiting=len(engine.waiting))
        self.known[index] = (replace(report, stats=stats), calls)
        calls.reported(num_gateways)


class Chooser(Protocol):
    """A gateway's way to choose."""

    def begin(self, request: Request) -> ChannelCall | None: ...


class RoundRobin:
    """Each gateway begins somewhere else: in step, all would send to the same engine at once."""

    def __init__(self, connected: Connected, gateway: int) -> None:
        self._connected = connected
        self._next = random.Random(gateway).randrange(len(connected.known))

    def begin(self, request: Request) -> ChannelCall | None:
        self._next = (self._next + 1) % len(self._connected.known)
        return self._connected.known[self._next][1].begin(request)


class PowerOfTwo:
    """The one with less to do of two that are drawn, as Serve's router does; each gateway draws
    others.
    """

    def __init__(self, connected: Connected, gateway: int) -> None:
        self._connected = connected
        self._draw = random.Random(gateway)

    def begin(self, request: Request) -> ChannelCall | None:
        drawn = self._draw.sample(self._connected.known, 2)
        _, calls = min(drawn, key=lambda one: _load(*one))
        return calls.begin(request)


def _load(report: EngineReport, calls: OpenCalls) -> int:
    reported = report.stats.num_seqs_running + report.stats.num_seqs_waiting
    return max(calls.num_seqs, reported + calls.num_unreported)


class Gateway:
    """`kind`: one of KINDS."""

    def __init__(self, index: int, num_engines: int, kind: str) -> None:
        self.address = GatewayAddress("gateway", index, b"")
        self.connected = Connected(num_engines)
        choosers: dict[str, Any] = {"round robin": RoundRobin, "power of two": PowerOfTwo}
        self._calling = Calling(Uncounted(), self.connected)  # type: ignore[arg-type]
        self._chooser: Chooser = choosers[kind](self.connected, index) if kind in choosers else self._calling
        self.seconds = 0.0  # of decisions
        self.num_remembered = 0
        self.tells = kind in ("squadron", "without losses")
        self.hears_losses = kind == "squadron"

    def choose(self, request: Request) -> tuple[int, int]:
        """The engine's index and the call's number there."""
        before = [calls.num_begun for _, calls in self.connected.known]
        started = time.process_time()
        call = self._chooser.begin(request)
        self.seconds += time.process_time() - started - CLOCK_SECONDS
        assert call is not None
        (chosen,) = [index for index, (_, calls) in enumerate(self.connected.known) if calls.num_begun != before[index]]
        return chosen, before[chosen]

    def hear(self, index: int, engine: ScriptedEngine, num_gateways: int, beginnings: bytes, lost: bytes) -> None:
        """A report of an engine: what other gateways have sent it, and what it has lost."""
        self.connected.report(index, engine, num_gateways)
        if self.tells and (beginnings or lost):
            started = time.process_time()
            self._calling.prefixes.hear(f"replica-{index}", 0, beginnings, lost if self.hears_losses else b"")
            self.seconds += time.process_time() - started - CLOCK_SECONDS
        self.num_remembered = len(self._calling.prefixes)


class Told:
    """What one engine tells its gateways of each other's prompts, by the product's own client."""

    def __init__(self, gateways: list[Gateway]) -> None:
        self._client = DeltaClient(lambda _: None)
        self._hears_losses = gateways[0].hears_losses
        for gateway in gateways:
            self._client._connections[gateway.address] = Untold()  # type: ignore[assignment]

    def hear(self, gateway: Gateway, beginnings: list[bytes]) -> None:
        self._client.hear(gateway.address, b"".join(beginnings))

    def lose(self, lost: bytes) -> None:
        if self._hears_losses:
            self._client._told.has_lost(lost, 0)

    def take(self, gateway: Gateway) -> bytes:
        connection = self._client._connections[gateway.address]
        told = bytes(connection.untold)
        connection.untold.clear()
        return told


class Untold:
    def __init__(self) -> None:
        self.untold = bytearray()


KINDS = ("squadron", "without losses", "each alone", "power of two", "round robin")
