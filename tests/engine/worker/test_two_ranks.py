"""TP=2 in two processes, on one GPU where there is one: the same bits as TP=1."""

import pytest
import torch

import ops
from tests.engine.worker.tiny import execute_on, generate, make_runner
from tests.engine.worker.two_ranks import PROMPTS, SHAPE, two_ranks


@pytest.mark.parametrize("device_name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_two_ranks_have_the_bits_of_one(device_name: str) -> None:
    device = torch.device(device_name)
    backend = ops.select("auto", device)
    if not backend.EXACT:
        pytest.skip("the fastest backend here is not exact")
    alone = generate(execute_on(make_runner(backend, device, SHAPE)), PROMPTS, 6)
    with two_ranks(device_name) as execute:
        assert generate(execute, PROMPTS, 6, chunk=7) == alone
