"""Where requests go, simulated: gateways with the product's own choice of replica, engines whose
steps take what a formula says, clients that ask again when they have their answer.

    python -m tests.benchmarks.routing.simulate [--engines 100] [--gateways 10] [--streams 10000]
        [--seconds 20] [--pieces 4096]

Prints for each load and each way to choose: the share of prompts' tokens that an engine had
computed before, time to the first token, tokens a second, and what a gateway spends: processor time
of a request (its digests, the choice, what it hears from others), beginnings remembered, messages
and bytes a second. "each alone" is without what other gateways have sent,
"without losses" without what caches have lost. `--pieces` of 64 tokens are an engine's cache.
"""

import argparse
import asyncio
import heapq
import random
import statistics

from cluster.replica.delta_channel.told import MAX_TOLD_BYTES
from engine.kv_events.beginnings import NAME_BYTES
from tests.benchmarks.routing.engine import MAX_PIECES, Asked, ScriptedEngine
from tests.benchmarks.routing.gateways import KINDS, Gateway, Told
from tests.benchmarks.routing.loads import Conversations, SharedBeginnings, loads

REPORT_SECONDS = 0.2
HEADING = f"{'load':18} {'by':13}   hits first p50       p99      tok/s       us remembered  mess./s     kB/s"
THINK_SECONDS = 0.5  # mean, between an answer and the next question
WARM_SHARE = 0.4  # of the time, which does not count


class Simulation:
    """Events by their time: (seconds, order, what, of which)."""

    def __init__(self, load: Conversations | SharedBeginnings, kind: str, options: argparse.Namespace) -> None:
        self._load = load
        self._draw = random.Random(7)
        self.engines = [ScriptedEngine(options.pieces) for _ in range(options.engines)]
        self.gateways = [Gateway(index, options.engines, kind) for index in range(options.gateways)]
        self._told = [Told(self.gateways) for _ in self.engines]
        self._events: list[tuple[float, int, str, int]] = []
        self._order = 0
        self.ended: list[Asked] = []
        self.num_tokens = self.num_bytes = 0
        self._warm = options.seconds * WARM_SHARE
        self.seconds = options.seconds - self._warm
        for conversation in range(options.streams):
            self._at(self._draw.uniform(0, 2), "ask", conversation)
        for index in range(options.engines):
            self._at(self._draw.uniform(0, REPORT_SECONDS), "report", index)

    def _at(self, seconds: float, what: str, which: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (seconds, self._order, what, which))

    async def run(self) -> None:
        handlers = {"ask": self._ask, "report": self._report, "step": self._end_step}
        end = self._warm + self.seconds
        while self._events and self._events[0][0] < end:
            now, _, what, which = heapq.heappop(self._events)
            handlers[what](now, which)
            await asyncio.sleep(0)  # for the ends of calls

    def _ask(self, now: float, conversation: int) -> None:
        request, asked = self._load.next(conversation, now)
        asked.gateway = self._draw.randrange(len(self.gateways))
        gateway = self.gateways[asked.gateway]
        asked.engine, asked.number = gateway.choose(request)
        if gateway.tells:
            self._told[asked.engine].hear(gateway, asked.beginnings)
        self.engines[asked.engine].add(asked)
        if not self.engines[asked.engine].is_busy:
            self._begin_step(now, asked.engine)

    def _begin_step(self, now: float, index: int) -> None:
        seconds = self.engines[index].begin_step()
        self.engines[index].is_busy = seconds > 0
        if seconds:
            self._at(now + seconds, "step", index)

    def _end_step(self, now: float, index: int) -> None:
        num_tokens, ended = self.engines[index].end_step(now)
        if now > self._warm:
            self.num_tokens += num_tokens
            self.ended += ended
        for asked in ended:
            self.gateways[asked.gateway].connected.known[index][1].answer(asked.number, None)
            self._at(now + self._draw.expovariate(1 / THINK_SECONDS), "ask", asked.conversation)
        self._begin_step(now, index)

    def _report(self, now: float, index: int) -> None:
        lost = self.engines[index].take_lost(MAX_TOLD_BYTES // NAME_BYTES)
        self._told[index].lose(lost)
        for gateway in self.gateways:
            beginnings = self._told[index].take(gateway)
            gateway.hear(index, self.engines[index], len(self.gateways), beginnings, lost)
            self.num_bytes += len(beginnings) * gateway.tells + len(lost) * gateway.hears_losses
        self._at(now + REPORT_SECONDS, "report", index)


def row(name: str, kind: str, simulation: Simulation) -> str:
    ended = simulation.ended
    firsts = [asked.first_token - asked.arrived for asked in ended]
    percentiles = statistics.quantiles(firsts, n=100)
    hits = sum(asked.num_cached for asked in ended) / sum(asked.num_tokens for asked in ended)
    num_asked = sum(calls.num_begun for gateway in simulation.gateways for _, calls in gateway.connected.known)
    spent = sum(gateway.seconds for gateway in simulation.gateways) / num_asked
    num_gateways = len(simulation.gateways)
    whole = simulation.seconds / (1 - WARM_SHARE)
    return (
        f"{name:18} {kind:13} {hits:6.0%} {percentiles[49]:9.3f} {percentiles[98]:9.3f} "
        f"{simulation.num_tokens / simulation.seconds:10.0f} {spent * 1e6:8.0f} "
        f"{max(gateway.num_remembered for gateway in simulation.gateways):10} "
        f"{len(simulation.engines) / REPORT_SECONDS:8.0f} {simulation.num_bytes / whole / num_gateways / 1e3:8.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = {"engines": 100, "gateways": 10, "streams": 10_000, "seconds": 20, "pieces": MAX_PIECES}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    print(
        f"{options.engines} engines, {options.gateways} gateways, {options.streams} streams; "
        f"times in seconds, processor time of a gateway for a request in us, kB a second to each gateway"
    )
    print(HEADING, flush=True)
    for number in range(len(list(loads(0)))):
        for kind in options.kinds:
            load = list(loads(3))[number]
            simulation = Simulation(load, kind, options)
            asyncio.run(simulation.run())
            print(row(load.name, kind, simulation), flush=True)


if __name__ == "__main__":
    main()
