from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.request import Adapter
from engine.step import ExecuteModelRequest
from engine.worker.worker import Worker
from parallel.errors import InvalidAdapter
from parallel.spec.adapter import WEIGHTS_FILE
from tests.adapters import save_adapter
from tests.engine.worker.on_demo import execute, make_config
from tests.engine.worker.steps import Part, ints, make_step


def step(number: int, *adapters: Adapter) -> ExecuteModelRequest:
    """A prompt for each, without one for the last."""
    parts = [Part([5, 6, 7], 0, [1 + index]) for index in range(len(adapters) + 1)]
    return replace(
        make_step(number, parts),
        adapter_runs=ints(*((3 * index, 3 * index + 3, index) for index in range(len(adapters)))).reshape(-1, 3),
        adapter_digests=[adapter.digest for adapter in adapters],
        adapter_folders=[adapter.folder for adapter in adapters],
    )


@pytest.fixture(scope="module")
def worker() -> Worker:
    worker = Worker(make_config(enable_lora=True, max_loras=2))
    worker.initialize_cache(8, 0)
    return worker


def adapters_of(worker: Worker, folder: Path) -> list[Adapter]:
    shapes = worker._shard.model.config.shapes()
    return [save_adapter(folder / name, shapes, seed=seed) for seed, name in enumerate("abc")]


def kept(worker: Worker) -> list[str]:
    return list(worker._runner._layers._adapters._ready)


def test_the_adapters_that_were_used_last_are_kept(worker: Worker, tmp_path: Path) -> None:
    a, b, c = adapters_of(worker, tmp_path)
    execute(worker, step(0, a, b))
    assert kept(worker) == [a.digest, b.digest]
    execute(worker, step(1, c, b))  # b is not dropped for c
    assert kept(worker) == [b.digest, c.digest]
    (Path(c.folder) / WEIGHTS_FILE).unlink()
    execute(worker, step(2, c))  # is not read again
    with pytest.raises(ValueError, match="step 3 has 3 adapters, and 2 can be ready"):
        worker.execute(step(3, a, b, c))


def test_the_host_keeps_more_than_a_step_has(tmp_path: Path) -> None:
    """Of `max_cpu_loras`, those that were used last; their files are not read again."""
    worker = Worker(make_config(enable_lora=True, max_loras=1, max_cpu_loras=2))
    worker.initialize_cache(8, 0)
    a, b, c = adapters_of(worker, tmp_path)
    first = [execute(worker, step(number, adapter)) for number, adapter in enumerate((a, b))]
    assert kept(worker) == [a.digest, b.digest]
    (Path(a.folder) / WEIGHTS_FILE).unlink()
    assert np.array_equal(execute(worker, step(2, a)).token_ids, first[0].token_ids)
    execute(worker, step(3, c))
    assert kept(worker) == [a.digest, c.digest], "b was used before a"
    with pytest.raises(InvalidAdapter, match="cannot be read: No such file"):
        (Path(b.folder) / WEIGHTS_FILE).unlink()
        worker.execute(step(4, b))


def test_files_that_have_changed_or_gone_are_not_served(worker: Worker, tmp_path: Path) -> None:
    a, b, _ = adapters_of(worker, tmp_path / "other")
    weights = Path(a.folder) / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(InvalidAdapter, match="a has changed: its digest is"):
        worker.execute(step(4, replace(a, digest="0" * 64)))
    weights.unlink()
    with pytest.raises(InvalidAdapter, match=f"{weights} cannot be read: No such file"):
        worker.execute(step(5, replace(a, digest="1" * 64)))
    execute(worker, step(6, b))
