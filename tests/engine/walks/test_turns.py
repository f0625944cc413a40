"""Nobody starves on random walks, and whoever would is seen."""

import random
from collections import Counter

import pytest

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.waiting.waiting_queue import WaitingQueue
from tests.engine.support.workloads import random_knobs
from tests.engine.walks.long_walk import walk
from tests.engine.walks.turns import Turns

NUM_WALKS = 6


def walked(seed: int) -> tuple[Turns, Counter[str]]:
    rng = random.Random(seed)
    knobs = random_knobs(rng)
    knobs.overrides["scheduling_policy"] = "fcfs"
    turns, ends = walk(rng, knobs)
    assert ends["failed"] == 0
    return turns, ends


def test_nobody_starves() -> None:
    walks = [walked(seed) for seed in range(NUM_WALKS)]
    assert [complaint for turns, _ in walks for complaint in turns.complaints()] == []
    assert max(turns.most_aside for turns, _ in walks) > 0
    assert sum(ends["wrong guesses"] for _, ends in walks) > 1000, "blocks are taken for guesses, and kept"


def last_come_first(self):
    return max(self, key=lambda lane: lane.order, default=None)


def the_shortest_first(self):
    return min(self, key=lambda lane: lane.seqs[0].num_tokens, default=None)


def rest_sometimes(self, plan):
    if self.step % 100 < 60 and len(self.queues.running) > 1:
        plan.lanes = plan.lanes[1:]
    RIGHT(self, plan)


RIGHT = Scheduler._schedule_running
PLANTED = [
    (WaitingQueue, "first", last_come_first, "waited when one that had come later"),
    (WaitingQueue, "first", the_shortest_first, "waited when one that had come later"),
    (Scheduler, "_schedule_running", rest_sometimes, "gained nothing"),
]


@pytest.mark.parametrize(("owner", "name", "bug", "complaint"), PLANTED, ids=[bug.__name__ for *_, bug, _ in PLANTED])
def test_who_starves_is_seen(monkeypatch, owner, name, bug, complaint):
    monkeypatch.setattr(owner, name, bug)
    found = (complaint in told for seed in range(NUM_WALKS) for told in walked(seed)[0].complaints())
    assert any(found)
