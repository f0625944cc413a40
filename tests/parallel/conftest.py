"""One thread a rank and the same random numbers each time."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def surroundings() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)
