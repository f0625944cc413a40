"""A long random walk over scheduler and block manager, and what it found.

    python -m tests.engine.walks.long_walk [--operations 1000000] [--seed 0]

Operations are calls on scheduler and block manager (add, abort, schedule, admit, reserve, fork,
swap, free, index). After every step, references must equal users and free + used must equal all; at
the end nothing may be left. Requests keep coming; the longest wait, counted in requests that were
added later and scheduled earlier, shows that nobody starves.
"""

import argparse
import json
import random
import time
from collections import Counter

from engine.errors import InvalidRequest
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.scheduler import Scheduler
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, check_engine, make_engine, random_knobs, random_requests

COUNTED = {
    BlockManager: (
        "admit",
        "reserve",
        "fork",
        "free",
        "swap_out",
        "swap_in",
        "index_full_blocks",
        "num_blocks_to_admit",
    ),
    Scheduler: ("add", "schedule", "finish", "requeue_all"),
}
REQUESTS_PER_ENGINE = 120


def count_calls(counts: Counter[str]) -> None:
    """Have every counted method count itself."""
    for owner, names in COUNTED.items():
        for name in names:
            setattr(owner, name, _counting(getattr(owner, name), name, counts))


def _counting(method, name, counts):
    def counted(*args, **kwargs):
        counts[name] += 1
        return method(*args, **kwargs)

    return counted


def walk(rng: random.Random, knobs: Knobs) -> tuple[int, Counter[str]]:
    """One engine, many requests, some aborted, some crashes: the most that one was overtaken by,
    and how requests ended.
    """
    engine = make_engine(knobs)
    engine.executor.crash_at = {rng.randint(1, 2000) for _ in range(3)}
    waiting = random_requests(rng, REQUESTS_PER_ENGINE)
    arrivals: dict[str, int] = {}
    unscheduled: dict[str, int] = {}  # request -> how many later ones were scheduled before it
    ends: Counter[str] = Counter()
    most_overtaken = 0
    while waiting or engine.has_unfinished_requests():
        if waiting and rng.random() < 0.2:
            request = waiting.pop()
            try:
                add_request(
                    engine,
                    request.request_id,
                    request.prompt,
                    request.params,
                    cache_salt=request.cache_salt,
                    matcher=request.matcher,
                )
                unscheduled[request.request_id] = 0
                arrivals[request.request_id] = len(arrivals)
            except InvalidRequest:
                ends["refused"] += 1
        if unscheduled and rng.random() < 0.01:
            gone = rng.choice(list(unscheduled))
            engine.abort_request(gone)
            del unscheduled[gone]
            ends["aborted"] += 1
        for output in engine.step():
            if output.finished:
                ends["failed" if output.error else "finished"] += 1
        if engine.recorder.timeline.records:
            for request_id in set(engine.recorder.timeline.records[-1].request_ids) & set(unscheduled):
                del unscheduled[request_id]
                for other in unscheduled:
                    unscheduled[other] += arrivals[other] < arrivals[request_id]
                    most_overtaken = max(most_overtaken, unscheduled[other])
        check_engine(engine)
    assert engine.stats().num_free_gpu_blocks == engine.stats().num_gpu_blocks
    assert engine.stats().num_free_cpu_blocks == engine.stats().num_cpu_blocks
    return most_overtaken, ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    count_calls(counts)
    rng = random.Random(arguments.seed)
    started, most_overtaken, ends = time.monotonic(), 0, Counter()
    while counts.total() < arguments.operations:
        knobs = random_knobs(rng)
        knobs.overrides["scheduling_policy"] = "fcfs"
        overtaken, ended = walk(rng, knobs)
        most_overtaken = max(most_overtaken, overtaken)
        ends += ended
        print(f"\r{counts.total():>10,} operations", end="", flush=True)
    assert ends["failed"] == 0
    result = {"operations": counts.total(), "seconds": time.monotonic() - started, "most_overtaken": most_overtaken}
    print("\n" + json.dumps(result | {"calls": counts, "ends": ends}))


if __name__ == "__main__":
    main()
