import torch

from engine.worker.worker import Worker
from tests.engine.worker.on_demo import make_config


def test_threads_are_the_cores_divided_by_the_ranks() -> None:
    torch.set_num_threads(2)
    Worker(make_config(num_threads=None), num_ranks_here=64)
    assert torch.get_num_threads() == 1
