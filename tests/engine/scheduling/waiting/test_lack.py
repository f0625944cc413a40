"""A lane that does not fit costs a step the same however long its prompt is, and comes in as soon
as it fits.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from engine.core.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.scheduling.block_pool import REMEMBERED, BlockPool
from engine.scheduling.queues import Queues
from engine.scheduling.sequence import Lane, Sequence
from engine.scheduling.tiers.prefix_index import PrefixIndex
from engine.scheduling.waiting.lack import Lack
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import (
    VOCAB,
    Knobs,
    Request,
    finish,
    make_engine,
    random_knobs,
    random_params,
    random_requests,
    run,
)

LONG = SamplingParams(max_tokens=100, ignore_eos=True)


def walks(engine: LLMEngine, num_steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often steps look for the blocks of a sequence."""
    num_walks, on_device = 0, PrefixIndex.on_device

    def counted(index: PrefixIndex, seq: Sequence, salt: bytes) -> list[int]:
        nonlocal num_walks
        num_walks += 1
        return on_device(index, seq, salt)

    with monkeypatch.context() as patch:
        patch.setattr(PrefixIndex, "on_device", counted)
        for _ in range(num_steps):
            engine.step()
    return num_walks


@pytest.mark.parametrize(("swap_seconds", "queue"), [(0.0, "swapped"), (float("inf"), "waiting")])
def test_a_prompt_that_does_not_fit_is_looked_for_once(
    swap_seconds: float, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the request is computed for which it was preempted, and whose beginning it has."""
    engine = make_engine(Knobs(num_blocks=35, num_cpu_blocks=40, swap_seconds_per_block=swap_seconds))
    prompt = [number % 37 for number in range(400)]
    add_request(engine, "runs", prompt[:160] + [1] * 100, LONG)
    engine.step()
    add_request(engine, "long", prompt, LONG)
    preemption = engine.scheduler.preemption
    while not preemption.num_swaps + preemption.num_recomputes:
        engine.step()
    lanes = list(getattr(engine.scheduler.queues, queue))
    assert [lane.group.request.id for lane in lanes] == ["long"]
    for _ in range(2):  # its last token comes, and it is looked for
        engine.step()
    assert walks(engine, 25, monkeypatch) == 0
    assert list(getattr(engine.scheduler.queues, queue)) == lanes
    finish(engine)


def mixed(rng: random.Random) -> tuple[Knobs, list[Request]]:
    knobs = random_knobs(rng)
    knobs.num_blocks = rng.choice((15, 20, 30))
    return knobs, random_requests(rng, rng.randint(4, 12))


def crowded(rng: random.Random) -> tuple[Knobs, list[Request]]:
    """Prompts with one beginning, computed a few tokens a step: what others need gets less while
    they wait.
    """
    knobs, _ = mixed(rng)
    knobs.overrides |= {"enable_prefix_caching": True, "max_num_seqs": 32}
    knobs.overrides |= {"max_num_batched_tokens": 33, "long_prefill_token_threshold": rng.choice((1, 7, 16))}
    beginning = [rng.randrange(VOCAB) for _ in range(150)]
    requests = []
    for number in range(rng.randint(6, 12)):
        prompt = beginning[: rng.choice((32, 64, 100, 150))] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))]
        requests.append(Request(f"r{number}", prompt, random_params(rng), rng.choice((0, 0, -1, 2)), None))
    return knobs, requests


Workload = Callable[[random.Random], tuple[Knobs, list[Request]]]


def num_kept_out(workload: Workload, num_seeds: int) -> int:
    """How often a lane was kept out unseen; each time it is looked for all the same."""
    count, fits, holds = 0, Queues.fits, Lack.holds

    def counted(lack: Lack, device: BlockPool, num_free: int) -> bool:
        nonlocal count
        does = holds(lack, device, num_free)
        count += does
        return does

    def checked(queues: Queues, lane: Lane, num_free: int, num_needed: Callable[[Lane], int]) -> bool:
        does = fits(queues, lane, num_free, num_needed)
        assert does == (num_needed(lane) <= num_free), "it is kept out, and would fit"
        return does

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lack, "holds", counted)
        patch.setattr(Queues, "fits", checked)
        for seed in range(num_seeds):
            rng = random.Random(seed)
            knobs, requests = workload(rng)
            engine = make_engine(knobs)
            if rng.random() < 0.3:
                engine.executor.crash_at = {rng.randint(1, 120) for _ in range(2)}
            run(engine, requests, rng)
    return count


@pytest.mark.parametrize(("workload", "num_seeds"), [(mixed, 30), (crowded, 20)])
def test_whoever_is_kept_out_would_be_if_it_was_looked_for_again(workload: Workload, num_seeds: int) -> None:
    assert num_kept_out(workload, num_seeds) > 500


def register_untold(pool: BlockPool, block: int, content: bytes, register: Any = BlockPool.register) -> bool:
    number, is_new = pool.num_taken_up, register(pool, block, content)
    pool.num_taken_up = number
    return bool(is_new)


def look_once(lack: Lack, device: BlockPool, num_free: int) -> bool:
    return num_free < lack._num_needed


def need_one_more(lack: Lack, device: BlockPool, num_free: int, holds: Any = Lack.holds) -> bool:
    return bool(holds(lack, device, num_free - 1))


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [(BlockPool, "register", register_untold), (Lack, "holds", look_once), (Lack, "holds", need_one_more)],
)
def test_a_wake_up_that_is_missed_shows(owner: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the one above."""
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError, match="it is kept out, and would fit"):
        num_kept_out(crowded, 20)


def test_what_came_into_use_long_ago_is_not_remembered() -> None:
    pool = BlockPool(2, 1)
    block = pool.allocate()
    lack = Lack(pool, 1, {b"mine"})
    assert lack.holds(pool, 0) and not lack.holds(pool, 1)
    assert not lack.holds(BlockPool(2, 1), 0), "the cache is another one"
    for number in range(REMEMBERED):
        pool.register(block, str(number).encode())
        pool.forget(str(number).encode())
    assert lack.holds(pool, 0)
    pool.register(block, b"mine")
    assert not lack.holds(pool, 0)
    pool.release(block)
    lack = Lack(pool, 1, {b"mine"})
    pool.share(block)
    assert not lack.holds(pool, 0), "nobody held it"
    pool.share(block)
    lack = Lack(pool, 1, {b"mine"})
    for number in range(REMEMBERED + 1):
        pool.forget(b"mine" if number == 0 else str(number - 1).encode())
        pool.register(block, str(number).encode())
    assert not lack.holds(pool, 0), "nobody knows"
