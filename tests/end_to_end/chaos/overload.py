"""More requests than can be answered, ten times as many as at the peak (T18): what the server makes
of them, how long a request of somebody else waits meanwhile, and how soon all is as before.
"""

import asyncio
import gc
import itertools
import math
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Report, percentile
from cluster.chaos.requests import ChaosRequest, make_requests
from cluster.chaos.run import undisturbed
from cluster.chaos.transcript import Transcript
from tests.end_to_end.chaos.app import app_args, running
from tests.end_to_end.chaos.effort import Effort
from tests.end_to_end.chaos.memory import WatchedMemory
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.prober import Told, probing

NUM_DIFFERENT = 128
NUM_CLIENTS = 64  # each asks again when it is answered: the peak
MAX_TOKENS = 64
TIMES_PEAK = 10
MAX_RATE = 600.0  # requests a second
QUEUE_SECONDS = 3.0  # `max_queue_seconds`: what waits in the end is what a short request waits for then
# After so long a client leaves: at least, and in times of what an answer takes at the peak.
LEAVE_SECONDS, LEAVE_TIMES = 20.0, 6.0
CANARY_TOKENS = 8
NUM_IDLE_CANARIES = 5
NORMAL_TIMES, NORMAL_SECONDS = 3, 1.0  # a canary is as before within the larger one
BACK_SECONDS = 60.0  # for that to come
LEAST_SHARE = 0.9  # of the peak's tokens, that reach whole answers
REFUSED_SECONDS = 0.05  # 99 of 100 refusals come within, for a client that does not flood
NORMAL_WITHIN_SECONDS = 5.0
MOST_GROWN = 512  # MiB, of gateway, proxy and engine together: their queues and streams have limits
POLL_SECONDS = 0.5


@dataclass(slots=True)
class _Run:
    """What was sent, and what came of it."""

    client: ChaosClient
    requests: list[ChaosRequest]
    expected: dict[int, Transcript] = field(default_factory=dict)
    peak: tuple[float, float] = (0.0, 0.0)  # requests and tokens a second
    leave_seconds: float = LEAVE_SECONDS
    streams: list[Stream] = field(default_factory=list)  # of the overload, which have an end
    probed: list[Told] = field(default_factory=list)  # by a client of its own, during the overload
    num_left: int = 0  # clients that had no more patience
    seconds: float = 0.0  # of overload
    end: float = 0.0  # of it, of time.monotonic()
    idle: float = 0.0  # a canary's seconds, before
    canaries: list[float] = field(default_factory=list)  # seconds to their answers
    num_refused: int = 0  # canaries
    num_unanswered: int = 0  # canaries that were neither answered nor refused
    seconds_back: float | None = None
    memory: str = ""  # MiB before, at most, after
    num_grown: int = 0  # MiB
    shares: str = ""  # of a processor
    lag: str = ""  # ms, of the client
    most_waiting: int = 0  # requests, as the engine told
    most_over: int = 0  # sequences that the engine held beyond its places and its queue's limit


def overload(options: Options) -> Report:
    """T18, overload: ten times the peak's requests for 60 s, from clients that leave after 20 s or
    more, beside one request a second: the queue keeps its limit, at least 90 % of the peak's tokens
    reach whole and right answers, some of the short requests are answered and the others refused,
    refusals are quick and as documented, no process grows without end, and then all is as before.
    With --quick no time is judged.
    """
    seconds = options.seconds or (15.0 if options.quick else 60.0)
    num_requests = options.pick(options.streams, NUM_DIFFERENT, 64)
    with running(app_args({}, recovers=options.recovers, max_queue_seconds=QUEUE_SECONDS), options.ingress) as app:
        run = asyncio.run(_send(app.url, num_requests, seconds, options.seed))
    answers = [stream for stream in run.streams if not _is_refused(stream)]
    report = Report("T18", 0, [], answers, run.expected)
    _judge(report, run)
    if not options.quick:
        _judge_times(report, run)
    return report


async def _send(url: str, num_requests: int, seconds: float, seed: int) -> _Run:
    async with ChaosClient(url) as client:
        model = await client.first_model()
        requests = make_requests(num_requests, model=model, max_tokens=MAX_TOKENS, seed=seed)
        run = _Run(client, requests)
        run.expected = await undisturbed(client, requests, NUM_CLIENTS)
        run.peak = await _measure_peak(run)
        run.leave_seconds = max(LEAVE_SECONDS, LEAVE_TIMES * NUM_CLIENTS / run.peak[0])
        run.idle = statistics.median([await _canary(run) or run.leave_seconds for _ in range(NUM_IDLE_CANARIES)])
        async with WatchedMemory() as memory, _watched_queue(run):
            with probing(url, model) as prober:
                with _no_garbage_collection():
                    async with Effort() as effort:
                        clients, asked = await _send_too_much(run, seconds)
                prober.stop()
                await _until_normal(run)
        run.probed = prober.told
        await asyncio.gather(*asked)
        await asyncio.gather(*clients, return_exceptions=True)
        run.num_left = len(clients) - len(run.streams)
        run.memory, run.num_grown = memory.summary, memory.grown
        run.shares, run.lag = effort.shares, effort.lag
        return run


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """The client holds ten thousand answers, and a collection would count as the server's."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _measure_peak(run: _Run) -> tuple[float, float]:
    """Requests and tokens a second."""
    streams: list[Stream] = []
    begin = time.monotonic()
    await run.client.send_all(run.requests, concurrency=NUM_CLIENTS, streams=streams)
    seconds = time.monotonic() - begin
    return len(streams) / seconds, sum(map(_num_tokens, streams)) / seconds


def _num_tokens(stream: Stream) -> int:
    """Of a whole answer."""
    return stream.transcript.usage[1] if stream.transcript.usage is not None else 0


async def _send_too_much(run: _Run, seconds: float) -> tuple[list[asyncio.Task[None]], list[asyncio.Task[None]]]:
    """Returns the clients, and those that asked one request a second: some have no answer yet."""
    rate = min(TIMES_PEAK * run.peak[0], MAX_RATE)
    tasks: list[asyncio.Task[None]] = []
    begin = time.monotonic()
    asked: list[asyncio.Task[None]] = []
    canaries = asyncio.create_task(_send_canaries(run, asked))
    for number, request in enumerate(itertools.cycle(run.requests)):
        at = begin + number / rate
        if at > begin + seconds:
            break
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        tasks.append(asyncio.create_task(_ask(run, request)))
    run.end = time.monotonic()
    run.seconds = run.end - begin
    canaries.cancel()
    await asyncio.gather(canaries, return_exceptions=True)
    return tasks, asked


async def _ask(run: _Run, request: ChaosRequest) -> None:
    async with asyncio.timeout(run.leave_seconds):
        run.streams.append(await run.client.stream(request))


async def _send_canaries(run: _Run, tasks: list[asyncio.Task[None]]) -> None:
    """One a second, until it is cancelled, each a task."""

    async def ask() -> None:
        stream = await _ask_shortly(run)
        if stream is not None and stream.transcript.is_complete:
            run.canaries.append((stream.ended or 0) - stream.sent)
        elif stream is not None and _is_refused(stream):
            run.num_refused += 1
        else:
            run.num_unanswered += 1

    while True:
        tasks.append(asyncio.create_task(ask()))
        await asyncio.sleep(1.0)


async def _canary(run: _Run) -> float | None:
    """Seconds to a short answer; None if there was none."""
    stream = await _ask_shortly(run)
    if stream is None or not stream.transcript.is_complete:
        return None
    return (stream.ended or 0) - stream.sent


async def _ask_shortly(run: _Run) -> Stream | None:
    """None: a client would have left."""
    request = run.requests[0]
    short = replace(request, body=request.body | {"max_tokens": CANARY_TOKENS, "min_tokens": 0})
    try:
        async with asyncio.timeout(run.leave_seconds):
            return await run.client.stream(short)
    except TimeoutError:
        return None


async def _until_normal(run: _Run) -> None:
    """Ask canaries, one after the other, until one is answered as before."""
    begin = time.monotonic()
    limit = max(NORMAL_SECONDS, NORMAL_TIMES * run.idle)
    while time.monotonic() < begin + BACK_SECONDS:
        asked = time.monotonic()
        if (await _canary(run) or math.inf) <= limit:
            run.seconds_back = asked - begin
            return
        await asyncio.sleep(NORMAL_SECONDS / 2)


@asynccontextmanager
async def _watched_queue(run: _Run) -> AsyncIterator[None]:
    """What engines tell of it, through the gateway."""

    async def watch() -> None:
        while True:
            for engine in (await run.client.get("/debug/engines"))["engines"]:
                stats, limits = engine["stats"], engine["limits"]
                num_waiting, (most, _) = stats["num_requests_waiting"], limits["max_waiting"]
                run.most_waiting = max(run.most_waiting, num_waiting)
                over = stats["num_seqs_running"] + stats["num_seqs_waiting"] - limits["num_places"] - most
                run.most_over = max(run.most_over, over)
            await asyncio.sleep(POLL_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        if watching.done():
            watching.result()
        watching.cancel()


def _is_refused(stream: Stream) -> bool:
    """As it is documented; every other error is a failure."""
    is_overload = stream.status == 503 and "server_overloaded" in str(stream.error)
    return is_overload and stream.retry_after is not None and 1 <= int(stream.retry_after) <= 120


def _judge(report: Report, run: _Run) -> None:
    tokens = _good_tokens(run)
    num_whole = sum(stream.transcript.is_complete for stream in run.streams)
    rate = (len(run.streams) + run.num_left) / run.seconds
    report.figures |= {
        "peak": f"{run.peak[0]:.1f} requests/s, {run.peak[1]:.0f} tokens/s of {NUM_CLIENTS} clients",
        "sent": f"{rate:.0f} requests/s for {run.seconds:.0f} s, {rate / run.peak[0]:.1f} times the peak",
        "answered": f"{tokens:.0f} tokens/s ({tokens / run.peak[1]:.0%} of the peak), {num_whole} whole answers",
        "refused": f"{len(_refusal_seconds(run))} by 503; seconds {_in_short(_refusal_seconds(run))}",
        "refused to others": f"{len(_probed_seconds(run))} of {len(run.probed)}; {_in_short(_probed_seconds(run))}",
        "waited at most": f"{run.most_waiting} requests in the engine",
        "left": f"{run.num_left}, after {run.leave_seconds:.0f} s",
        "a canary, s": f"{run.idle:.2f} before; {_summary(run.canaries)}; "
        f"{run.num_refused} refused, {run.num_unanswered} unanswered",
        "as before after, s": "never" if run.seconds_back is None else round(run.seconds_back, 1),
        "memory, MiB": run.memory,
        "processor time": run.shares,
        "the client's lag, ms": run.lag,
    }
    if run.seconds_back is None:
        report.unmet.append(f"a short request took longer than before for {BACK_SECONDS:.0f} s")
    if run.num_unanswered or not run.canaries:
        told = f"{len(run.canaries)} were answered, {run.num_refused} refused, {run.num_unanswered} neither"
        report.unmet.append(f"of short requests meanwhile {told}")
    others = [told for told in run.probed if told.status != 200 and not told.is_refusal]
    if others or not run.probed:
        report.unmet.append(f"a client beside the flood was told {others[:3]}")
    if run.num_grown > MOST_GROWN:
        report.unmet.append(f"the server's processes grew by {run.num_grown} MiB, not {MOST_GROWN}")
    if run.most_over:
        report.unmet.append(f"the engine held {run.most_over} sequences more than its limits say")


def _judge_times(report: Report, run: _Run) -> None:
    share = _good_tokens(run) / run.peak[1]
    if share < LEAST_SHARE:
        report.unmet.append(f"{share:.0%} of the peak's tokens came through, not {LEAST_SHARE:.0%}")
    refused = _probed_seconds(run)
    if refused and percentile(refused, 0.99) > REFUSED_SECONDS:
        report.unmet.append(f"refusals took p99 {percentile(refused, 0.99):.3f} s, not {REFUSED_SECONDS} s")
    if run.seconds_back is not None and run.seconds_back > NORMAL_WITHIN_SECONDS:
        report.unmet.append(f"all was as before after {run.seconds_back:.1f} s, not {NORMAL_WITHIN_SECONDS:.0f} s")


def _good_tokens(run: _Run) -> float:
    """Tokens a second that came during the overload, and are of answers that became whole."""
    whole = [stream for stream in run.streams if stream.transcript.is_complete]
    shares = [sum(at <= run.end for at in stream.arrivals) / max(len(stream.arrivals), 1) for stream in whole]
    return sum(_num_tokens(stream) * share for stream, share in zip(whole, shares, strict=True)) / run.seconds


def _refusal_seconds(run: _Run) -> list[float]:
    return sorted((stream.ended or math.inf) - stream.sent for stream in run.streams if _is_refused(stream))


def _probed_seconds(run: _Run) -> list[float]:
    return sorted(told.seconds for told in run.probed if told.is_refusal)


def _in_short(seconds: list[float]) -> str:
    return f"p50 {percentile(seconds, 0.5):.3f}, p99 {percentile(seconds, 0.99):.3f}" if seconds else "-"


def _summary(seconds: list[float]) -> str:
    return f"p50 {statistics.median(seconds):.2f}, max {max(seconds):.2f}" if seconds else "none answered"
