import torch

from engine.worker.device.pick import pick_device
from engine.worker.worker import Worker
from tests.engine.worker.on_demo import make_config


def test_threads_are_the_cores_divided_by_the_ranks() -> None:
    torch.set_num_threads(2)
    Worker(make_config(num_threads=None), num_ranks_here=64)
    assert torch.get_num_threads() == 1


def test_what_auto_has_turned_out_to_be_is_what_the_rank_goes_by() -> None:
    """As in how many adapters its device keeps, and how many the host."""
    device = pick_device("auto").torch_device.type
    assert Worker(make_config(device="auto"))._shard.config.device == device
