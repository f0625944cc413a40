"""Each row's set of tokens, as ranks find it by what steps tell, is its request's; and of those who
run no more, ranks keep nothing.
"""

import random
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.core.llm_engine import LLMEngine
from engine.outputs import SamplerOutput
from engine.sampling_columns import SamplingColumns
from engine.sampling_params import SamplingParams
from engine.scheduling.token_sets.requested import TokenSet
from engine.step import ExecuteModelRequest
from engine.worker.head.set_copies import SetCopies
from tests.engine.support.arrivals import add_request
from tests.engine.support.demo import answers, demo_engine, every_bit
from tests.engine.support.workloads import Knobs, Request, make_engine, random_requests, run
from tests.engine.worker.steps import Part, ints, make_step

SETS: tuple[dict[str, Any], ...] = (
    {"allowed_token_ids": (3,)},
    {"allowed_token_ids": (4, 5, 6, 7)},  # more than two ids are a mask
    {"allowed_token_ids": (8, 9, 10, 11), "logit_bias": {9: 1.5}},
    {"logit_bias": {9: 1.5, 3: -2.0}},
    {},
)
KERNELS = {"ops_backend": "cpu", "dtype": "bfloat16"}
MORE = SamplingParams(max_tokens=40, ignore_eos=True)


class Watched:
    """The sets as a rank of this engine has them, over all its epochs."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine, self.copies = engine, SetCopies()
        self.submit, engine.executor.submit = engine.executor.submit, self.compare
        self.num_named = self.num_told = 0  # sets, by rows and by steps

    def compare(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        columns = self.copies.read(request).sampling
        wanted = [self._set_of(seed) for seed in columns.seed.tolist()]
        found = {
            "ids": _rows(columns.allowed_ids, columns.allowed_starts, len(wanted)),
            "words": _rows(columns.allowed_mask_words, columns.allowed_mask_starts, len(wanted)),
            "bias_ids": _rows(columns.bias_ids, columns.bias_starts, len(wanted)),
            "bias_values": _rows(columns.bias_values, columns.bias_starts, len(wanted)),
        }
        assert found == {name: [getattr(each, name).tolist() for each in wanted] for name in found}
        self.num_named += np.count_nonzero(request.sampling.token_sets)
        self.num_told += len(request.set_changes)
        running = {lane.group.token_set.digest for lane in self.engine.scheduler.queues.running} - {b""}
        assert len(self.copies.sets) == len(running)
        return self.submit(request)

    def _set_of(self, seed: int) -> TokenSet:
        return next(lane.group.token_set for lane in self.engine.scheduler.queues.running if lane.group.seed == seed)


def _rows(values: np.ndarray, starts: np.ndarray, num_rows: int) -> list[list[int]]:
    return [row.tolist() for row in np.split(values, starts[1:-1])] if len(starts) else [[]] * num_rows


def with_sets(rng: random.Random, count: int) -> list[Request]:
    requests = [each for each in random_requests(rng, 3 * count) if each.pooling is None and each.matcher is None]
    requests = [each for each in requests if each.params.beam_width is None]
    some = []
    for number, request in enumerate(requests[:count]):
        params = replace(
            request.params,
            seed=1000 + number,
            bad_words=(),
            **SETS[number % len(SETS)],
            prompt_logprobs=None,  # rows with a given token, which name no set
            thinking_token_budget=None,
            min_tokens=0,
        )
        some.append(replace(request, params=params))
    return some


@pytest.mark.parametrize("depth", [1, 3])
def test_whatever_requests_go_through(depth: int) -> None:
    """Recoveries, preemptions of both kinds, aborts."""
    engine = make_engine(Knobs(num_blocks=30, num_cpu_blocks=20, depth=depth, runs_ahead=True))
    watched = Watched(engine)
    rng = random.Random(depth)
    engine.executor.crash_at = {40, 41, 90}
    add_request(engine, "dropped", [9] * 20, replace(MORE, seed=5, allowed_token_ids=(1, 2, 3, 20)))
    for _ in range(3):
        engine.step()
    assert len(watched.copies.sets) == 1
    engine.abort_request("dropped")
    run(engine, with_sets(rng, 40))
    stats = engine.stats()
    assert stats.num_recoveries and stats.num_preemptions_swap + stats.num_preemptions_recompute
    assert watched.num_told < watched.num_named / 2
    add_request(engine, "last", [9] * 20, replace(MORE, seed=5))
    engine.step()
    assert watched.copies.sets == {}


def test_another_epoch_begins_without_any() -> None:
    copies = SetCopies()
    values = np.array([0.5], np.float32).view(np.int32)
    told = {"set_changes": np.array([[4, 2, 0, 0], [7, 0, 1, 1]], np.int32), "set_words": ints(5, 6, 0b11, 9, *values)}
    copies.read(replace(make_step(0, [Part([1], 0, [3])]), **told))
    assert {number: [part.tolist() for part in kept[:4]] for number, kept in copies.sets.items()} == {
        4: [[5, 6], [], [], []],
        7: [[], [0b11], [9], [0.5]],
    }
    step = make_step(1, [Part([1], 0, [3])])
    assert copies.read(step) is step and len(copies.sets) == 2
    copies.read(replace(step, epoch=step.epoch + 1))
    assert copies.sets == {}


def test_a_row_has_the_biases_of_its_position_and_of_its_set() -> None:
    copies = SetCopies()
    values = np.array([0.5, -1.0], np.float32).view(np.int32)
    told = {"set_changes": np.array([[2, 0, 0, 2]], np.int32), "set_words": ints(9, 8, *values)}
    own = {
        "bias_starts": ints(0, 1, 1, 3),
        "bias_ids": ints(4, 5, 6),
        "bias_values": np.array([-1, -2, -3], np.float32),
    }
    columns = SamplingColumns.of_plain_rows(3, token_sets=ints(0, 2, 2), **own)
    read = copies.read(replace(make_step(0, [Part([1], 0, [3])]), sampling=columns, **told)).sampling
    assert read.bias_starts.tolist() == [0, 1, 3, 7]
    assert read.bias_ids.tolist() == [4, 9, 8, 5, 6, 9, 8]
    assert read.bias_values.tolist() == [-1, 0.5, -1, -2, -3, 0.5, -1]
    assert len(read.token_sets) == len(read.allowed_starts) == 0


def test_answers_of_the_demo_are_those_given_alone() -> None:
    """Few at once, so that some are preempted, and each beside others with other sets or none."""
    prompt = [*range(40, 70)]
    wishes = [
        {"allowed_token_ids": tuple(range(30, 90))},
        {},
        {"allowed_token_ids": tuple(range(30, 90)), "n": 2},
        {"allowed_token_ids": tuple(range(100, 140)), "logprobs": 2},
        {"allowed_token_ids": tuple(range(300)), "presence_penalty": 0.5, "logit_bias": {5: 9.0}},
    ]
    requests = [
        (prompt[n:], SamplingParams(temperature=1.0, seed=n, max_tokens=24, ignore_eos=True, **wishes[n % 5]))
        for n in range(10)
    ]
    with demo_engine(**KERNELS) as engine:
        alone = [every_bit(answers(engine, [single])[0]) for single in requests]
    with demo_engine(**KERNELS, num_gpu_blocks_override=16, max_model_len=200, swap_space=0.001) as engine:
        assert [every_bit(output) for output in answers(engine, requests)] == alone
        stats = engine.stats()
        assert stats.num_preemptions_swap + stats.num_preemptions_recompute > 0
        assert engine.executor._worker._runner._inputs.sets.sets.keys() <= {1, 2, 3}
