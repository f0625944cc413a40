"""Decode steps with adapters are on tapes, whichever adapters and rows, with the same bits."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

import ops
from engine.request import Adapter
from engine.step import ExecuteModelRequest
from engine.worker.worker import Worker
from tests.adapters import demo_shapes, save_adapter
from tests.engine.worker.on_demo import make_config
from tests.engine.worker.steps import decode_step, ints

NUM_ROWS = 5
REASON = ops.unavailable_reason("cpu", torch.device("cpu"))
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def step(number: int, *adapters: Adapter | None) -> ExecuteModelRequest:
    """Row n has the n-th."""
    given = list(dict.fromkeys(adapter for adapter in adapters if adapter is not None))
    runs = [(row, row + 1, given.index(each)) for row, each in enumerate(adapters) if each is not None]
    return replace(
        decode_step(number, NUM_ROWS),
        adapter_runs=ints(*(value for run in runs for value in run)).reshape(-1, 3),
        adapter_digests=[adapter.digest for adapter in given],
        adapter_folders=[adapter.folder for adapter in given],
    )


def make_worker(**changes: object) -> Worker:
    worker = Worker(make_config(ops_backend="cpu", dtype="bfloat16", enable_lora=True, max_loras=2, **changes))
    worker.initialize_cache(8 * NUM_ROWS, 0)
    return worker


def residual_of(worker: Worker, request: ExecuteModelRequest) -> torch.Tensor:
    """[NUM_ROWS, D], what the head reads."""
    assert worker._runner is not None
    with torch.inference_mode():
        return worker._runner._layers.run(request, worker._runner._inputs).clone()


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder, shapes = tmp_path_factory.mktemp("adapters"), demo_shapes()
    return [
        save_adapter(folder / "whole", shapes, rank=8, seed=1),
        save_adapter(folder / "mlp", shapes, rank=3, targets=("up_proj", "down_proj"), seed=2),
        save_adapter(folder / "high", shapes, rank=40, targets=("q_proj", "v_proj", "o_proj"), seed=3),
    ]


def test_steps_on_tapes_have_the_bits_of_steps_that_are_not(adapters: list[Adapter]) -> None:
    """Adapters come and go in two places, and one that comes back has another place."""
    a, b, c = adapters
    taped, launched = make_worker(), make_worker(enforce_eager=True)
    assert taped._runner is not None
    layers, seen = taped._runner._layers, []
    for number, rows in enumerate(
        (
            (None, a, None, a, b),
            (b, b, None, a, None),
            (None, None, None, None, None),
            (c, None, a, c, None),
            (None, b, c, b, b),
            (a, None, None, None, b),
            (a, c, a, c, a),
        )
    ):
        got = residual_of(taped, step(number, *rows))
        assert torch.equal(got, residual_of(launched, step(number, *rows))), number
        seen.append(got)
    assert layers.graphs is not None and layers.adapted_graphs is not None
    assert (layers.graphs.num_captured, layers.adapted_graphs.num_captured) == (1, 1)
    base = seen[2]
    assert torch.equal(seen[0][[0, 2]], base[[0, 2]]), "rows without an adapter"
    assert torch.equal(seen[0][4], seen[4][4]) and not torch.equal(seen[0][4], base[4])


def test_an_adapter_that_is_dropped_is_freed_though_a_tape_has_read_it(adapters: list[Adapter]) -> None:
    a, b, c = adapters
    worker = make_worker()
    residual_of(worker, step(0, a, b))
    assert worker._runner is not None
    ready = worker._runner._layers._adapters._ready
    first = weakref.ref(next(iter(next(iter(ready.values())).linears.values())).tensors[0])
    residual_of(worker, step(1, b, c))
    gc.collect()
    assert first() is None
    assert list(ready) == [b.digest, c.digest]


def test_ranks_without_adapters_have_no_tapes_for_them() -> None:
    worker = Worker(make_config(ops_backend="cpu", dtype="bfloat16"))
    worker.initialize_cache(8, 0)
    assert worker._runner is not None
    assert worker._runner._layers.graphs is not None
    assert worker._runner._layers.adapted_graphs is None
