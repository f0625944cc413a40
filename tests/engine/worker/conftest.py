"""Workers on the demo checkpoint."""

from collections.abc import Iterator

import pytest
import torch

from engine.worker.worker import Worker
from tests.engine.worker.on_demo import make_config


@pytest.fixture(scope="module")
def loaded() -> Worker:
    return Worker(make_config(swap_space=0.01, num_threads=None), num_ranks_here=2)


@pytest.fixture
def worker(loaded: Worker) -> Worker:
    """With an empty cache of 32 blocks."""
    loaded.initialize_cache(32, 32)
    return loaded


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
