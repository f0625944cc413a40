"""Decode steps by graphs: which steps, in which sizes, and the same bits as without them, with
steps in flight.
"""

import gc
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import ops
from engine.config import EngineConfig
from engine.outputs import SamplerOutput
from engine.sampling_columns import SamplingColumns
from engine.step import ExecuteModelRequest
from engine.worker.device.cpu import CpuDevice
from engine.worker.graphs.decode_graphs import TAPE_SIZES, DecodeGraphs, is_decode
from engine.worker.inputs import Inputs
from engine.worker.model_runner import ModelRunner
from engine.worker.step_tensors import StepTensors
from engine.worker.worker import Worker
from ops.cpu.tape import Tapes
from ops.interface import Ops
from parallel.groups.group import Group
from parallel.groups.pipeline import Stage
from tests.engine.worker.on_demo import MODEL
from tests.engine.worker.recompute import Recompute
from tests.engine.worker.steps import Part, floats, ints, make_step, pairs
from tests.engine.worker.tiny import Shape, make_runner
from tests.parallel.ranks import run_ranks

CPU = torch.device("cpu")
MAX_NUM_SEQS = 11
MAX_MODEL_LEN = 600
BLOCKS_EACH = 3
SIZES = {"max_num_seqs": MAX_NUM_SEQS, "max_model_len": MAX_MODEL_LEN, "max_num_batched_tokens": 240}


def test_a_decode_step_has_one_row_for_each_sequence() -> None:
    assert is_decode(make_step(0, [Part([5] * 9, 8, [1]), Part([6], 0, [2])]))
    assert not is_decode(make_step(0, [Part([5] * 9, 8, [1]), Part([6, 7], 0, [2])]))
    assert not is_decode(make_step(0, [], blocks_to_copy=pairs((1, 2))))


@cache
def loaded() -> Worker:
    if (reason := ops.unavailable_reason("cpu", CPU)) is not None:
        pytest.skip(reason)
    config = EngineConfig.create(
        model=MODEL, device="cpu", ops_backend="cpu", dtype="bfloat16", max_model_len=MAX_MODEL_LEN, swap_space=0
    )
    return Worker(config)


def new_runner(how: str) -> Worker:
    """The worker with an empty cache, which runs steps as they come, by "graphs" as on a GPU, or by
    "tapes".
    """
    worker = loaded()
    worker.initialize_cache(1 + BLOCKS_EACH * MAX_NUM_SEQS, 0)
    runner = worker._runner
    assert runner is not None
    assert runner._layers.graphs is not None, "tapes, on the CPU"
    if how == "as they come":
        runner.drop_graphs()
    if how == "graphs":
        runner.use_graphs(Recompute(), **SIZES)
    return worker


def num_captured(worker: Worker) -> int:
    assert worker._runner is not None
    assert worker._runner._layers.graphs is not None
    return worker._runner._layers.graphs.num_captured


def prompts(num_seqs: int) -> list[Part]:
    return [
        Part([3 + index * 7 + k for k in range(5 + 3 * index)], 0, list(range(1 + 3 * index, 4 + 3 * index)))
        for index in range(num_seqs)
    ]


def columns(parts: list[Part], *, with_logprobs: bool = True, with_penalties: bool = False) -> object:
    """Greedy and seeded by turns, with logprobs; with_penalties: of every row but each third."""
    num_rows = len(parts)
    num_prompt = [(5 + 3 * row) * (row % 3 < 2) for row in range(num_rows)]
    penalties = {
        "history_num_prompt": ints(*num_prompt),
        "repetition_penalty": np.full(num_rows, 1.3, np.float32),
        "frequency_penalty": floats(*(row / 4 for row in range(num_rows))),
    }
    return SamplingColumns.of_plain_rows(
        num_rows,
        **(penalties if with_penalties else {}),
        temperature=floats(*(float(row % 2) for row in range(num_rows))),
        seed=np.arange(num_rows, dtype=np.uint64),
        position=ints(*(len(part.token_ids) for part in parts)),
        logprob_counts=np.full(num_rows, 3 if with_logprobs else 0, np.int32),
    )


def decode(worker: Worker, num_seqs: int, num_steps: int, num_in_flight: int, **asked: bool) -> list[SamplerOutput]:
    """A prompt each, then steps that carry the tokens of the one before, `num_in_flight` launched
    before one is read. `asked`: of `columns`.
    """
    parts = prompts(num_seqs)
    pending = deque([worker.launch(make_step(0, parts, sampling=columns(parts)))])
    outputs = []
    for step in range(1, 1 + num_steps):
        parts = [replace(part, token_ids=[*part.token_ids, 0], start=len(part.token_ids)) for part in parts]
        pending.append(worker.launch(carrying(step, parts, **asked)))
        while len(pending) > num_in_flight:
            outputs.append(worker.finish(pending.popleft()))
    return [output for output in (*outputs, *map(worker.finish, pending)) if output is not None]


def carrying(step: int, parts: list[Part], **asked: bool) -> ExecuteModelRequest:
    rows = pairs(*((row, row) for row in range(len(parts))))
    return make_step(step, parts, carried_rows=rows, sampling=columns(parts, **asked))


def bits(outputs: list[SamplerOutput]) -> list[tuple[bytes, ...]]:
    return [
        tuple(column.tobytes() for column in (o.token_ids, o.is_finite, o.logprobs, o.ranks, o.top_ids, o.top_logprobs))
        for o in outputs
    ]


@pytest.mark.parametrize("how", ["graphs", "tapes"])
@pytest.mark.parametrize("num_seqs", range(1, MAX_NUM_SEQS + 1))
def test_every_batch_size_has_the_bits_it_has_without_graphs(num_seqs: int, how: str) -> None:
    expected = bits(decode(new_runner("as they come"), num_seqs, 6, num_in_flight=1))
    worker = new_runner(how)
    assert bits(decode(worker, num_seqs, 6, num_in_flight=1)) == expected
    if how == "graphs":
        assert num_captured(worker) == 2, "the largest, and this"
    else:
        assert num_captured(worker) == (1 if num_seqs <= TAPE_SIZES[-1] else 0)
    assert bits(decode(worker, num_seqs, 6, num_in_flight=4)) == expected, "with several steps in flight"
    assert len(set(expected)) == 7


@pytest.mark.parametrize("with_penalties", [False, True], ids=["plain", "penalties"])
@pytest.mark.parametrize("num_seqs", [1, 7])
def test_without_logprobs_sampling_is_a_graph_too_and_the_tokens_are_the_same(
    num_seqs: int, with_penalties: bool
) -> None:
    worker = new_runner("as they come")
    outputs = decode(worker, num_seqs, 6, num_in_flight=1, with_penalties=with_penalties)
    expected = [output.token_ids.tolist() for output in outputs]
    worker = new_runner("graphs")
    outputs = decode(worker, num_seqs, 6, num_in_flight=4, with_logprobs=False, with_penalties=with_penalties)
    assert [output.token_ids.tolist() for output in outputs] == expected
    assert worker._runner is not None
    assert worker._runner._sampler.graphs is not None
    assert worker._runner._sampler.graphs.num_captured == 2


@pytest.mark.parametrize("how", ["graphs", "tapes"])
def test_batches_that_shrink_and_grow_leave_nothing_behind(how: str) -> None:
    """Sequences leave and come back, so that padding rows were real ones in the step before; sizes
    take turns.
    """
    results = []
    for each in ("as they come", how):
        worker = new_runner(each)
        parts = prompts(MAX_NUM_SEQS)
        outputs = [worker.execute(make_step(0, parts, sampling=columns(parts)))]
        for step, num_seqs in enumerate((11, 2, 7, 1, 9, 3, 11, 5, 8), start=1):
            chosen = parts[step % 2 : step % 2 + num_seqs]
            grown = {
                part.blocks[0]: replace(part, token_ids=[*part.token_ids, 9 + step], start=len(part.token_ids))
                for part in chosen
            }
            parts = [grown.get(part.blocks[0], part) for part in parts]
            batch = list(grown.values())
            outputs.append(worker.execute(make_step(step, batch, sampling=columns(batch))))
        results.append(bits([output for output in outputs if output is not None]))
    assert results[0] == results[1]
    # 1, 2, 4, 8 and 11 rows, and 11 of the longest contexts; each number of rows that occurs
    assert num_captured(worker) == (6 if how == "graphs" else 8)


@pytest.mark.parametrize("how", ["graphs", "tapes"])
def test_a_capture_writes_into_no_block_of_a_sequence(how: str) -> None:
    """A block gets a new owner, and then a step is the first of its size: what the buffers held was
    the old owner's row.
    """
    old = Part([50, 51, 52, 53, 54, 55], 5, [1])
    prompts = [Part(list(range(60, 69)), 0, [1]), Part(list(range(80, 87)), 0, [2])]
    grown = [replace(part, token_ids=[*part.token_ids, 4], start=len(part.token_ids)) for part in prompts]
    steps = [make_step(0, [replace(old, start=0)]), make_step(1, [old]), make_step(2, prompts)]
    steps.append(make_step(3, grown, sampling=columns(grown)))
    last = []
    for each in ("as they come", how):
        worker = new_runner(each)
        last.append(bits([output for output in map(worker.execute, steps) if output is not None])[-1])
    assert num_captured(worker) == (3 if how == "graphs" else 2)  # 1 and 2 rows, and 11
    assert last[0] == last[1]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("not permitted")], ids=str
)
def test_a_size_that_cannot_be_captured_runs_without(caplog: pytest.LogCaptureFixture, error: RuntimeError) -> None:
    recompute = Recompute()

    def capture(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        if recompute.num_graphs == 2:
            raise error
        return recompute(compute)

    expected = [bits(decode(new_runner("as they come"), count, 3, num_in_flight=2)) for count in (3, 7)]
    worker = new_runner("as they come")
    assert worker._runner is not None
    worker._runner.use_graphs(capture, **SIZES | {"max_num_batched_tokens": 1})
    assert [bits(decode(worker, count, 3, num_in_flight=2)) for count in (3, 7)] == expected
    assert num_captured(worker) == 2
    assert [record.message for record in caplog.records] == [
        f"there is no graph of 8 rows, such steps are launched as others are: {error}"
    ]


def test_a_step_that_runs_out_of_memory_before_the_capture_fails() -> None:
    """What runs before a capture runs on every rank: one that left its peers alone in it would be
    behind them for good.
    """
    num_calls = 0

    def forward(tensors: StepTensors) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tensors.positions[:, None].float()

    graphs = DecodeGraphs(
        forward, Recompute(), sizes=[1, 2], context_limits=[MAX_MODEL_LEN], received=None, num_kv_heads=1, device=CPU
    )
    step = make_step(0, [Part([5, 6, 7], 2, [1])])
    inputs = Inputs(loaded()._shard.model, None)
    with pytest.raises(torch.OutOfMemoryError):
        graphs.run(step, inputs, None)
    assert graphs.num_captured == 0
    assert graphs.run(step, inputs, None).tolist() == [[2.0]]
    assert graphs.num_captured == 2


def test_graphs_end_with_the_groups_that_they_hold() -> None:
    worker = new_runner("graphs")
    expected = bits(decode(worker, 3, 2, num_in_flight=1))
    assert num_captured(worker) == 2
    worker.rejoin(None, "127.0.0.1")
    assert num_captured(worker) == 0
    assert bits(decode(worker, 3, 2, num_in_flight=1)) == expected


class CapturingCpu(CpuDevice):
    """Whose graphs hold what torch computes, as a GPU's do."""

    graphs_hold_torch = True

    def capture(self) -> Recompute:
        return Recompute()


def test_where_graphs_hold_all_they_are_captured_with_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the first step of their size, which would wait for it, nor by what comes after a
    failure, which is waited for.
    """
    worker = new_runner("as they come")
    expected = bits(decode(worker, 3, 6, num_in_flight=1, with_logprobs=False))
    config = worker._shard.config.model_copy(update={"max_num_seqs": MAX_NUM_SEQS, "max_num_batched_tokens": 32})
    monkeypatch.setattr(worker, "_shard", replace(worker._shard, device=CapturingCpu(), config=config))
    worker.initialize_cache(1 + BLOCKS_EACH * MAX_NUM_SEQS, 0)
    num_graphs = 5 * 2  # 1, 2, 4, 8 and 11 rows; contexts of 512 and 600
    assert num_captured(worker) == num_graphs
    assert worker._runner is not None
    sampling = worker._runner._sampler.graphs
    assert sampling is not None
    assert sampling.num_captured == 25  # as many sizes, three kinds of draws, penalties, and logprobs
    assert bits(decode(worker, 3, 6, num_in_flight=1, with_logprobs=False)) == expected
    assert (num_captured(worker), sampling.num_captured) == (num_graphs, 25)
    worker.rejoin(None, "127.0.0.1")
    assert num_captured(worker) == 0


@pytest.mark.parametrize("how", ["graphs", "tapes"])
def test_a_cache_goes_at_once_with_its_runner(how: str) -> None:
    """Without the collector's help, which comes late or never: the next cache may want the same
    memory.
    """
    worker = new_runner(how)
    decode(worker, 3, 2, num_in_flight=1, with_logprobs=False)
    assert worker._runner is not None
    cache, graphs = weakref.ref(worker._runner._layers._cache.device[0][0]), weakref.ref(worker._runner._layers.graphs)
    gc.disable()
    try:
        worker.rejoin(None, "127.0.0.1")
        assert graphs() is None
        decode(worker, 3, 2, num_in_flight=1, with_logprobs=False)
        worker.initialize_cache(4, 0)
        assert cache() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["graphs", "tapes"])
def test_stages_pass_on_what_their_graphs_compute(how: str) -> None:
    """Two pipeline stages, whose steps are given: what one stage has had is what one without graphs
    has.
    """
    backend = loaded()._shard.model.ops
    parts = prompts(5)
    steps = [make_step(0, parts, sampling=columns(parts))]
    for step in range(1, 6):
        parts = [replace(part, token_ids=[*part.token_ids, 30 * step], start=len(part.token_ids)) for part in parts]
        steps.append(make_step(step, parts[step % 3 :], sampling=columns(parts[step % 3 :])))

    def use(runner: ModelRunner) -> None:
        if how == "graphs":
            runner.use_graphs(Recompute(), **SIZES)
        else:
            runner.use_tapes(Tapes().capture, max_model_len=MAX_MODEL_LEN)

    check_two_stages(backend, steps, use)


def check_two_stages(backend: Ops, steps: list[ExecuteModelRequest], use: Callable[[ModelRunner], None]) -> None:
    """Two stages that `use` graphs have the bits of one that launches."""

    def run(_: Group, pp: Group) -> list[SamplerOutput]:
        stage = Stage(pp.rank, pp.size, pp)
        runner = make_runner(backend, CPU, Shape(64, torch.bfloat16, torch.bfloat16), stage=stage)
        if pp.size > 1:
            use(runner)
        outputs = [runner.launch(step).result() for step in steps]
        pp.barrier()
        return [output for output in outputs if output is not None]

    alone = run_ranks(1, run)[0]
    first, last = run_ranks(1, run, pp_size=2)
    assert first == []
    assert bits(last) == bits(alone)


def test_contexts_of_two_lengths_have_two_graphs_of_the_same_bits() -> None:
    """A sequence that crosses 512 tokens."""
    blocks = list(range(1, 1 + BLOCKS_EACH * MAX_NUM_SEQS))
    tokens = [3 + 5 * k % 400 for k in range(509)]
    assert len(blocks) * 16 > 520
    results = []
    for how in ("as they come", "tapes", "graphs"):
        worker = new_runner(how)
        part = Part(tokens, 0, blocks)
        outputs = [worker.execute(make_step(0, [part], sampling=columns([part])))]
        for step in range(1, 7):
            part = replace(part, token_ids=[*part.token_ids, 0], start=len(part.token_ids))
            outputs.append(worker.execute(carrying(step, [part])))
        results.append(bits([output for output in outputs if output is not None]))
    assert results[0] == results[1] == results[2]
    assert num_captured(loaded()) == 3
