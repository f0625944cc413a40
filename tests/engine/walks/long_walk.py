"""A long random walk over scheduler and block manager, and what it found.

    python -m tests.engine.walks.long_walk [--operations 1000000] [--seed 0]

Operations are calls on scheduler and block manager (add, abort, schedule, admit, reserve, fork,
swap, free, index). After every step, references must equal users and free + used must equal all; at
the end nothing may be left. Requests keep coming, and nobody may starve: see `Turns`. Where tokens
are guessed, they are in most steps, and mostly wrong: blocks that were taken for them stay taken.
"""

import argparse
import json
import random
import time
from collections import Counter
from contextlib import AbstractContextManager
from unittest.mock import patch

from engine.core.llm_engine import LLMEngine
from engine.errors import InvalidRequest
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.drafts.drafter import Drafter
from engine.scheduling.scheduler import Scheduler
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import VOCAB, Knobs, check_engine, make_engine, random_knobs, random_requests
from tests.engine.walks.turns import Turns

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


def guess_at_random(rng: random.Random) -> AbstractContextManager[object]:
    """Have drafters do so, whatever became of it: random texts hardly ever repeat anything."""

    def guess(self: Drafter, token_ids: list[int], most: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(min(rng.randrange(10), max(most, 0)))]

    return patch.multiple(Drafter, guess=guess, judge=lambda *_: None)


def walk(rng: random.Random, knobs: Knobs) -> tuple[Turns, Counter[str]]:
    """One engine, many requests, some aborted, some crashes: whose turn it was, how requests ended,
    and how many tokens were guessed.
    """
    with guess_at_random(rng):
        return _walk(rng, make_engine(knobs))


def _walk(rng: random.Random, engine: LLMEngine) -> tuple[Turns, Counter[str]]:
    turns = Turns(engine)
    engine.executor.crash_at = {rng.randint(1, 2000) for _ in range(3)}
    waiting = random_requests(rng, REQUESTS_PER_ENGINE)
    present: set[str] = set()
    ends: Counter[str] = Counter()
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
                present.add(request.request_id)
            except InvalidRequest:
                ends["refused"] += 1
        if present and rng.random() < 0.01:
            gone = rng.choice(sorted(present))
            engine.abort_request(gone)
            present.remove(gone)
            ends["aborted"] += 1
        for output in engine.step():
            if output.finished:
                present.discard(output.request_id)
                ends["failed" if output.error else "finished"] += 1
        turns.look()
        check_engine(engine)
    assert engine.stats().num_free_gpu_blocks == engine.stats().num_gpu_blocks
    assert engine.stats().num_free_cpu_blocks == engine.stats().num_cpu_blocks
    drafts = engine.recorder.measures.copy().drafts
    ends["right guesses"], ends["wrong guesses"] = drafts.num_accepted, drafts.num_tokens - drafts.num_accepted
    return turns, ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    count_calls(counts)
    rng = random.Random(arguments.seed)
    started, ends = time.monotonic(), Counter()
    most_aside, most_still = 0, 0
    while counts.total() < arguments.operations:
        knobs = random_knobs(rng)
        knobs.overrides["scheduling_policy"] = "fcfs"
        turns, ended = walk(rng, knobs)
        assert turns.complaints() == [], (turns.complaints(), knobs)
        most_aside, most_still = max(most_aside, turns.most_aside), max(most_still, turns.most_still)
        ends += ended
        print(f"\r{counts.total():>10,} operations", end="", flush=True)
    assert ends["failed"] == 0
    assert ends["wrong guesses"] > ends["right guesses"] > 0
    result = {"operations": counts.total(), "seconds": time.monotonic() - started}
    waits = {"most_steps_aside": most_aside, "most_steps_without_gain_of_the_first": most_still}
    print("\n" + json.dumps(result | waits | {"calls": counts, "ends": ends}))


if __name__ == "__main__":
    main()
