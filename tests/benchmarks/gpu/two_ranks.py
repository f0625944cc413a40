"""Whether two ranks on one GPU give the bits of one."""

import torch

import ops
from tests.engine.worker.tiny import execute_on, generate, make_runner
from tests.engine.worker.two_ranks import PROMPTS, SHAPE, two_ranks


def compare_ranks(device: torch.device) -> bool:
    backend = ops.select("auto", device)
    alone = generate(execute_on(make_runner(backend, device, SHAPE)), PROMPTS, 6)
    with two_ranks(device.type) as execute:
        return generate(execute, PROMPTS, 6, chunk=7) == alone
