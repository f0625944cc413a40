"""Mixed steps by graphs: which steps, in which sizes, and the same bits as without them, whatever
sequences follow each other.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.sampling_columns import SamplingColumns
from engine.step import ExecuteModelRequest
from engine.worker.graphs import mixed_graphs
from engine.worker.graphs.decode_graphs import is_decode
from engine.worker.graphs.graphs import mixed_sizes
from engine.worker.graphs.mixed_graphs import MixedGraphs
from engine.worker.graphs.page import Page
from engine.worker.worker import Worker
from tests.engine.worker.graphs.test_decode_graphs import (
    SIZES,
    bits,
    check_two_stages,
    columns,
    loaded,
    new_runner,
    num_captured,
)
from tests.engine.worker.recompute import Recompute
from tests.engine.worker.steps import Part, make_step, pairs

NUM_SEQS, BLOCKS_EACH, LONGEST = 11, 3, 48


def mixed_of(worker: Worker) -> MixedGraphs:
    assert worker._runner is not None
    assert worker._runner._layers.mixed_graphs is not None
    return worker._runner._layers.mixed_graphs


def walk(seed: int, num_steps: int) -> list[ExecuteModelRequest]:
    """Steps of any of the sequences, each of one row (half of them the token that the step before
    has sampled) or of several; one that is full gives its blocks to another.
    """
    draw = Random(seed)
    tokens: list[list[int]] = [[] for _ in range(NUM_SEQS)]
    rows_before: dict[int, int] = {}
    steps = []
    for step in range(num_steps):
        parts, carried = [], []
        chosen = draw.sample(range(NUM_SEQS), draw.randint(1, NUM_SEQS))
        for index in chosen:
            if len(tokens[index]) == LONGEST:
                tokens[index] = []
                rows_before.pop(index, None)
            start = len(tokens[index])
            count = min(LONGEST - start, 1 if start and draw.random() < 0.5 else draw.randint(1, 40))
            new = [draw.randint(3, 240) for _ in range(count)]
            if count == 1 and index in rows_before and draw.random() < 0.5:
                carried.append((sum(len(part.token_ids) - part.start for part in parts), rows_before[index]))
                new = [0]
            tokens[index] = tokens[index] + new
            parts.append(Part(tokens[index], start, [1 + BLOCKS_EACH * index + k for k in range(BLOCKS_EACH)]))
        rows_before = {index: row for row, index in enumerate(chosen)}
        steps.append(make_step(step, parts, sampling=columns(parts), carried_rows=pairs(*carried)))
    return steps


def run(worker: Worker, steps: list[ExecuteModelRequest]) -> list[tuple[bytes, ...]]:
    """All launched before any is read, on what they share."""
    outputs = map(worker.finish, [worker.launch(step) for step in steps])
    return bits([output for output in outputs if output is not None])


def graphed(capture: Callable[[Callable[[], Tensor]], Callable[[], Tensor]] | None = None) -> Worker:
    worker = new_runner("as they come")
    assert worker._runner is not None
    worker._runner.use_graphs(capture or Recompute(), **SIZES)
    return worker


@pytest.mark.parametrize("seed", range(3))
def test_any_sequences_after_any_have_the_bits_they_have_without_graphs(seed: int) -> None:
    steps = walk(seed, 40)
    mixed = {len(step.input_ids) for step in steps if not is_decode(step)}
    sizes = {next(size for size in mixed_sizes(240) if size >= num_rows) for num_rows in mixed}
    assert {32, 64, 128, 240} <= sizes
    assert sum(len(step.carried_rows) for step in steps) > 10
    expected = run(new_runner("as they come"), steps)
    worker = graphed()
    assert run(worker, steps) == expected
    assert mixed_of(worker).num_captured == len(sizes)
    assert len(set(expected)) == len(steps)


@pytest.mark.parametrize("array", ["columns", "starts", "lengths", "tables"])
def test_what_is_not_filled_is_noticed(array: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that is planted: of what a graph reads, one array is zeros."""
    steps = [step for step in walk(0, 12) if len(step.input_ids) > len(step.context_lens)]
    expected = run(new_runner("as they come"), steps)

    send = Page.send

    def send_others(page: Page) -> None:
        send(page)
        if array in page.tensors:
            page.tensors[array].zero_()

    def write_nothing(arrays: Mapping[str, np.ndarray], tables: Tensor) -> None:
        tables.zero_()

    monkeypatch.setattr(Page, "send", send_others)
    if array == "tables":
        monkeypatch.setattr(mixed_graphs, "bring_tables", write_nothing)
    try:
        assert run(graphed(), steps) != expected
    except ValueError as error:
        assert "of the metadata has rows, a context or blocks that do not exist" in str(error)


def test_padding_reads_no_block_of_a_sequence() -> None:
    worker = graphed()
    long = [Part(list(range(3, 37)), 0, [1 + 3 * index + k for k in range(3)]) for index in range(6)]
    short = [Part(list(range(3, 10)), 0, [1 + index]) for index in range(5)]
    for step, (parts, size) in enumerate(((long, 240), (short, 64), (short[:1], 16))):
        worker.execute(make_step(step, parts))
        metadata, padding = mixed_of(worker)._step_tensors(size).metadata, len(parts)
        num_rows = sum(len(part.token_ids) for part in parts)
        assert metadata.query_starts[padding:].tolist() == [num_rows] + [size] * (NUM_SEQS + 1 - padding)
        assert metadata.context_lens[padding:].tolist() == [size - num_rows] + [0] * (NUM_SEQS - padding)
        assert not metadata.block_tables[padding, : -(-(size - num_rows) // 16)].any()
        assert not metadata.slot_mapping[num_rows:].any()


def test_which_steps_have_one() -> None:
    graphs = mixed_of(graphed())
    prompt = Part(list(range(3, 240)), 0, list(range(1, 16)))
    assert graphs.takes(make_step(0, [prompt, Part([5, 6, 7], 0, [16])]))
    assert not graphs.takes(make_step(0, [prompt, Part([5, 6, 7, 8], 0, [16])])), "241 rows"
    assert graphs.takes(make_step(0, [Part([5, 6], 0, [1])] * NUM_SEQS))
    assert not graphs.takes(make_step(0, [Part([5, 6], 0, [1])] * (NUM_SEQS + 1)))
    assert not graphs.takes(make_step(0, [], blocks_to_copy=pairs((1, 2))))
    longer = replace(make_step(0, [Part([5, 6], 0, [1])]), context_lens=np.array([601], np.int32))
    assert not graphs.takes(longer)


def test_a_prompt_between_leaves_decode_steps_to_theirs() -> None:
    worker = new_runner("graphs")
    first, second = Part([3, 4, 5], 0, [1]), Part([6, 7, 8, 9], 0, [2])
    worker.execute(make_step(0, [first]))
    grown = replace(first, token_ids=[*first.token_ids, 4], start=3)
    worker.execute(make_step(1, [grown, second]))
    assert (num_captured(worker), mixed_of(worker).num_captured) == (0, 2)
    worker.execute(make_step(2, [grown]))
    assert (num_captured(worker), mixed_of(worker).num_captured) == (2, 2)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("not permitted")], ids=str
)
def test_what_cannot_be_captured_is_launched_with_its_padding(
    caplog: pytest.LogCaptureFixture, error: RuntimeError
) -> None:
    """As other ranks may have the graph, with whom it exchanges."""
    recompute = Recompute()

    def capture(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if recompute.num_graphs == 1:
            raise error
        return recompute(compute)

    parts = [[Part([5, 6, 7 + step], 0, [1])] for step in range(2)]
    steps = [make_step(step, each, sampling=columns(each)) for step, each in enumerate(parts)]
    expected = run(new_runner("as they come"), steps)
    worker = graphed(capture)
    assert run(worker, steps) == expected
    assert mixed_of(worker).num_captured == 1
    message = f"there is no graph of 16 rows, such steps are launched as others are: {error}"
    assert [record.message for record in caplog.records] == [message]


def test_stages_pass_on_what_their_graphs_compute() -> None:
    backend = loaded()._shard.model.ops
    steps = [replace(step, carried_rows=pairs()) for step in walk(1, 8)]

    sizes = SIZES | {"max_model_len": LONGEST}
    check_two_stages(backend, steps, lambda runner: runner.use_graphs(Recompute(), **sizes))


def test_drafts_have_the_bits_they_have_one_by_one() -> None:
    """Five rows of a sequence, all of them sampled."""
    tokens = list(range(30, 50))

    def sampled(*starts: int) -> list[bytes]:
        worker, found = graphed(), []
        for step, (start, end) in enumerate(zip(starts, [*starts[1:], len(tokens)], strict=True)):
            rows = np.arange(end - start, dtype=np.int32)
            asked = SamplingColumns.of_plain_rows(len(rows), logprob_counts=np.full(len(rows), 3, np.int32))
            part = Part(tokens[:end], start, [1, 2])
            output = worker.execute(make_step(step, [part], sampled_rows=rows, sampling=asked))
            assert output is not None
            found += [column.tobytes() for column in (*output.token_ids, *output.top_logprobs)]
        return sorted(found)

    assert sampled(0, 15) == sampled(0, *range(15, 20))
