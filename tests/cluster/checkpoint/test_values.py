"""Damage in the numbers of a checkpoint, found without a manifest."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cluster.checkpoint import values as weight_values
from cluster.checkpoint.values import check_values
from engine.errors import InvalidConfig
from tests.cluster.checkpoint.damaged import config_of, refusal
from tests.corruptions import IN_WEIGHTS, TENSOR, WEIGHTS
from tests.end_to_end.conftest import free_port


def test_numbers_that_are_not_finite_are_found_without_a_manifest(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    IN_WEIGHTS["NaN block"](checkpoint)
    line = refusal(capsys, "generate", "--prompt", "once", str(checkpoint))
    assert line.endswith(f"{checkpoint / WEIGHTS}: tensor {TENSOR} holds NaN or infinity, as torch.bfloat16")
    line = refusal(capsys, "serve", "--port", str(free_port()), str(checkpoint))
    assert line.endswith(f"{checkpoint / WEIGHTS}: tensor {TENSOR} holds NaN or infinity, as BF16")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_every_kind_of_number_is_looked_at_to_the_last(checkpoint: Path, dtype: str, value: float) -> None:
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(checkpoint / WEIGHTS).items()}
    largest = torch.finfo(getattr(torch, dtype)).max
    tensors[TENSOR][-1, -2:] = torch.tensor([largest, -largest])
    save_file(tensors, checkpoint / WEIGHTS)
    assert check_values(config_of(checkpoint))
    tensors[TENSOR][-1, -1] = value
    save_file(tensors, checkpoint / WEIGHTS)
    with pytest.raises(InvalidConfig, match=f"{TENSOR} holds NaN or infinity"):
        check_values(config_of(checkpoint))


def test_large_weights_are_left_to_the_workers(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    IN_WEIGHTS["NaN block"](checkpoint)
    monkeypatch.setattr(weight_values, "MAX_BYTES", (checkpoint / WEIGHTS).stat().st_size // 2)
    assert not check_values(config_of(checkpoint))
