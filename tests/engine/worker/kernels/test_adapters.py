"""Adapters on the Triton kernels: rows with different ones in a step, and those that wait in the
host's memory.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.request import Adapter
from engine.step import ExecuteModelRequest
from engine.worker.adapters.kept import Adapters
from ops import kernels
from parallel.decoder import Decoder
from parallel.groups.group import SingleGroup
from parallel.groups.pipeline import Stage
from parallel.spec import read
from parallel.spec.adapter import WEIGHTS_FILE
from tests.adapters import save_adapter
from tests.engine.worker.steps import Part, ints, make_step
from tests.engine.worker.tiny import VOCAB_SIZE, hf_config
from tests.ops.kernels.where import DEVICE, MARKS
from tests.parallel.steps import Runner

pytestmark = MARKS


@pytest.fixture(scope="module")
def model() -> Decoder:
    model = Decoder(
        read(hf_config(64, VOCAB_SIZE)),
        ops=kernels,
        tp=SingleGroup(),
        stage=Stage(0, 1, None),
        dtype=torch.bfloat16,
        device=DEVICE,
    )
    model.load_dummy_weights(seed=3)
    return model


def step(number: int, *adapters: Adapter | None) -> ExecuteModelRequest:
    """Three rows for each, of a sequence of its own."""
    given = [adapter for adapter in adapters if adapter is not None]
    runs = [
        (3 * index, 3 * index + 3, given.index(adapter))
        for index, adapter in enumerate(adapters)
        if adapter is not None
    ]
    return replace(
        make_step(number, [Part([5, 6, 7], 0, [1 + index]) for index in range(len(adapters))]),
        adapter_runs=ints(*(number for run in runs for number in run)).reshape(-1, 3),
        adapter_digests=[adapter.digest for adapter in given],
        adapter_folders=[adapter.folder for adapter in given],
    )


def test_rows_of_a_step_have_their_own_and_the_bits_they_have_alone(model: Decoder, tmp_path: Path) -> None:
    shapes = model.config.shapes()
    a, b, c = (save_adapter(tmp_path / name, shapes, seed=seed, rank=3 + seed) for seed, name in enumerate("abc"))
    kept = Adapters(model, num_ready=2, num_kept=3)

    def logits(*adapters: Adapter | None) -> list[torch.Tensor]:
        rows = {index: (0, [5, 6, 7]) for index in range(len(adapters))}
        found = Runner(model, 4).step(rows, kept.of(step(0, *adapters)))
        assert found is not None
        return list(found.split(3))

    base, of_a, of_b, again = logits(None, a, b, None)
    assert torch.equal(base, again)
    assert torch.equal(base, logits(None)[0])
    assert not torch.equal(base, of_a) and not torch.equal(of_a, of_b)
    assert torch.equal(of_a, logits(a)[0])
    of_c = logits(c)[0]
    assert list(kept._ready) == [a.digest, c.digest]
    for adapter in (a, b, c):
        (Path(adapter.folder) / WEIGHTS_FILE).unlink()
    assert torch.equal(logits(b)[0], of_b), "from the host's memory"
    assert list(kept._ready) == [c.digest, b.digest] and set(kept._copies) == {a.digest, b.digest, c.digest}
    assert torch.equal(logits(c, a)[0], of_c)
