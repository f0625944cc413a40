"""Ten API keys, one of which sends twenty times its share (keys): what the other nine still get."""

import asyncio
import itertools
import re
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Report, percentile
from cluster.chaos.requests import ChaosRequest, make_requests
from cluster.chaos.run import undisturbed
from cluster.chaos.transcript import Transcript
from tests.end_to_end.chaos.app import app_args, running
from tests.end_to_end.chaos.options import Options

NUM_DIFFERENT = 64
NUM_CLIENTS = 64  # each asks again when it is answered: the peak
MAX_TOKENS = 64
OTHERS = [f"key-{number}" for number in range(9)]
GREEDY = "greedy"
LOADED = 0.8  # of the peak, that ten keys ask for together
TIMES = 20  # of its tenth, that the greedy one asks for
UNSETTLED = 0.4  # of a round
LEAST_KEPT = 0.9  # of each other's tokens
REFUSED = (429, 503)


@dataclass(slots=True)
class _Round:
    """Some seconds of requests at a rate of each key's own; times are of time.monotonic()."""

    begin: float
    seconds: float
    streams: list[tuple[str, Stream]] = field(default_factory=list)  # by key

    def tokens(self) -> dict[str, float]:
        """By key, a second, of answers that became whole. Those of the first part do not count:
        where more requests run, each takes longer, so for a while fewer end than begin.
        """
        found: defaultdict[str, float] = defaultdict(float)
        first, last = self.begin + self.seconds * UNSETTLED, self.begin + self.seconds
        for key, stream in self.streams:
            if stream.transcript.is_complete and stream.transcript.usage is not None and stream.arrivals:
                in_time = sum(first < at <= last for at in stream.arrivals) / len(stream.arrivals)
                found[key] += stream.transcript.usage[1] * in_time
        return {key: found[key] / (last - first) for key in [*OTHERS, GREEDY]}

    def waits(self) -> str:
        """Of the nine, from a request to its answer's end."""
        waits = sorted(
            (stream.ended or 0) - stream.sent
            for key, stream in self.streams
            if key != GREEDY and stream.transcript.is_complete
        )
        return f"p50 {percentile(waits, 0.5):.2f}, p95 {percentile(waits, 0.95):.2f}" if waits else "-"

    def refusals(self) -> Counter[str]:
        """What the nine were told, without its numbers, and how often."""
        errors = (stream.error or "" for key, stream in self.streams if key != GREEDY and stream.status in REFUSED)
        return Counter(re.sub(r"[\d.]+", "#", error) for error in errors)

    def num_refused(self, key: str) -> int:
        return sum(sender == key and stream.status in REFUSED for sender, stream in self.streams)


@dataclass(slots=True)
class _Run:
    expected: dict[int, Transcript]
    peak: float  # requests a second
    before: _Round
    beside: _Round


def be_greedy(options: Options) -> Report:
    """keys, fairness between API keys: ten of them ask for 80 % of what the server can answer, a
    tenth of that each, for 40 s; then one asks for twenty times as much. Each of the
    other nine gets at least 90 % of the tokens that it got before. With --quick no tokens are
    judged.
    """
    seconds = options.seconds or (8.0 if options.quick else 40.0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "keys.yaml")
        file.write_text(yaml.safe_dump({"keys": [{"name": key, "key": key} for key in [*OTHERS, GREEDY]]}))
        args = app_args({}, recovers=options.recovers, api_key_file=str(file))
        with running(args, options.ingress) as app:
            run = asyncio.run(_send(app.url, options.pick(options.streams, NUM_DIFFERENT, 32), seconds, options.seed))
    return _report(run, judges_tokens=not options.quick)


def _report(run: _Run, *, judges_tokens: bool) -> Report:
    rounds = {"before": run.before, "beside it": run.beside}
    answers = [stream for each in rounds.values() for _, stream in each.streams if stream.status not in REFUSED]
    report = Report("keys", 0, [], answers, run.expected)
    report.figures["peak"] = f"{run.peak:.1f} requests/s of {NUM_CLIENTS} clients"
    for name, each in rounds.items():
        told = each.tokens()
        nine = [told[key] for key in OTHERS]
        report.figures[f"the nine, {name}"] = (
            f"{sum(nine):.0f} tokens/s, of a key {min(nine):.0f} to {max(nine):.0f}; answers, s: {each.waits()}"
        )
        report.figures[f"the greedy one, {name}"] = f"{told[GREEDY]:.0f} tokens/s, {each.num_refused(GREEDY)} refused"
    kept = {key: tokens / max(run.before.tokens()[key], 1e-9) for key, tokens in run.beside.tokens().items()}
    least = min(kept[key] for key in OTHERS)
    report.figures["kept"] = f"{least:.0%} at least of the nine's tokens"
    told = [f"{num}: {error}" for error, num in (run.before.refusals() + run.beside.refusals()).items()]
    report.figures["of the nine's requests were refused"] = "; ".join(told) or "none"
    if judges_tokens and least < LEAST_KEPT:
        report.unmet.append(f"one of the nine kept {least:.0%} of its tokens, not {LEAST_KEPT:.0%}")
    return report


async def _send(url: str, num_requests: int, seconds: float, seed: int) -> _Run:
    async with AsyncExitStack() as stack:
        clients = {key: await stack.enter_async_context(ChaosClient(url, api_key=key)) for key in [*OTHERS, GREEDY]}
        first = clients[OTHERS[0]]
        requests = make_requests(num_requests, model=await first.first_model(), max_tokens=MAX_TOKENS, seed=seed)
        expected = await undisturbed(first, requests, NUM_CLIENTS)
        peak = await _measure_peak(first, requests)
        share = LOADED * peak / len(clients)
        before = await _ask(clients, requests, dict.fromkeys(clients, share), seconds)
        beside = await _ask(clients, requests, dict.fromkeys(OTHERS, share) | {GREEDY: TIMES * share}, seconds)
        return _Run(expected, peak, before, beside)


async def _measure_peak(client: ChaosClient, requests: list[ChaosRequest]) -> float:
    """Requests a second; each is sent four times, so that the last ones count for little."""
    streams: list[Stream] = []
    begin = time.monotonic()
    await client.send_all(requests * 4, concurrency=NUM_CLIENTS, streams=streams)
    return len(streams) / (time.monotonic() - begin)


async def _ask(
    clients: dict[str, ChaosClient], requests: list[ChaosRequest], rates: dict[str, float], seconds: float
) -> _Round:
    """`rates`: requests a second, by key. Returns when all are answered."""
    found = _Round(time.monotonic(), seconds)

    async def ask(key: str, request: ChaosRequest) -> None:
        found.streams.append((key, await clients[key].stream(request)))

    async def ask_all(key: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, request in enumerate(itertools.cycle(requests)):
                at = found.begin + number / rates[key]
                if at > found.begin + seconds:
                    return
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                tasks.create_task(ask(key, request))

    async with asyncio.TaskGroup() as tasks:
        for key in clients:
            tasks.create_task(ask_all(key))
    return found
