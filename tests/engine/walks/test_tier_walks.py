"""Conversations that come back, on tiers that hold less than one of them, with rows that are not
finite now and then, and on engines that follow each other on the same files: answers stay the same.
"""

import random

import pytest

from engine.sampling_params import SamplingParams
from tests.engine.support.workloads import (
    VOCAB,
    Knobs,
    Request,
    essence,
    make_engine,
    random_knobs,
    random_params,
    run,
    was_refused,
)
from tests.engine.walks.test_random_walks import undisturbed

NUM_WORKLOADS = 40
NUM_TURNS = 4
MOST_TOKENS = 170  # of a history; the smallest cache has room for its next turn


def scarce(rng: random.Random) -> Knobs:
    knobs = random_knobs(rng)
    knobs.num_blocks, knobs.num_cpu_blocks = rng.choice((20, 30, 45)), rng.choice((4, 5, 8, 12, 20))
    knobs.third_tier = rng.choice(("whole", "whole", "lossy"))
    knobs.overrides["enable_prefix_caching"] = True
    return knobs


def next_turns(rng: random.Random, turn: int, histories: list[list[int]]) -> list[Request]:
    """Of most of the conversations."""
    requests = []
    for number, history in enumerate(histories):
        params = random_params(rng)
        if params.thinking_token_budget is not None or rng.random() < 0.3:
            params = SamplingParams(max_tokens=rng.randint(1, 70), seed=rng.getrandbits(60), ignore_eos=True)
        history[MOST_TOKENS:] = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 50))]
        if rng.random() < 0.8:
            requests.append(Request(f"{turn} of {number}", list(history), params, 0, None))
    return requests


@pytest.mark.parametrize("shard", [0, *(pytest.param(shard, marks=pytest.mark.long) for shard in (1, 2, 3))])
def test_answers_depend_on_the_request_alone(shard: int) -> None:
    num_fetched, num_poisoned = 0, 0
    for seed in range(shard, NUM_WORKLOADS, 4):
        rng = random.Random(seed)
        beginning = [rng.randrange(VOCAB) for _ in range(rng.choice((0, 40, 100)))]
        histories = [list(beginning) for _ in range(rng.randint(2, 5))]
        files: dict[bytes, object] = {}
        known: set[bytes] = set()
        for _ in range(2):
            engine = make_engine(scarce(rng))
            engine.executor.files = files
            engine.keeping.known.contents |= known
            for turn in range(NUM_TURNS):
                requests = next_turns(rng, turn, histories)
                expected = undisturbed(requests)
                if rng.random() < 0.4:
                    engine.executor.poison = {engine.scheduler.step + rng.randint(0, 30) for _ in range(2)}
                got = run(engine, requests, rng)
                for request in requests:
                    told = got[request.request_id]
                    if told.error is not None and "finite" in told.error:
                        num_poisoned += 1
                    elif not was_refused(told.error):
                        assert essence(told) == essence(expected[request.request_id]), (seed, turn, request)
                    history = histories[int(request.request_id.split()[-1])]
                    history[:] = [*request.prompt, *expected[request.request_id].outputs[0].token_ids]
            num_fetched += engine.scheduler.blocks.shelf.num_fetched
            known = engine.keeping.known.contents
            assert engine.scheduler.blocks.device.num_free == engine.scheduler.blocks.device.num_usable
            assert engine.scheduler.blocks.host.num_free == engine.scheduler.blocks.host.num_usable
    assert num_fetched > 50 and num_poisoned > 0
