"""The device that a configuration asks for."""

import pytest
import torch

from engine.errors import InvalidConfig
from engine.worker.device.pick import pick_device


def test_the_host_is_always_there() -> None:
    assert pick_device("cpu").torch_device.type == "cpu"


def test_a_gpu_where_there_is_one() -> None:
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    assert pick_device("auto").torch_device.type == kind
    assert pick_device("auto").is_asynchronous == (kind == "cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="no CUDA device can be seen here; device=cpu would work"):
        pick_device("cuda")
