"""Ranks that exchange numbers and know what they must be."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from engine.worker.ranks import LOOPBACK, join_store, open_store
from engine.worker.trials.exchange import NUM_FLOATS, Exchanged, _check_sums, exchange
from parallel.errors import GroupError
from parallel.groups.mesh import Mesh


@pytest.mark.parametrize("sizes", [(2, 1), (1, 3), (2, 2)])
def test_ranks_end_together_after_as_many_rounds(sizes: tuple[int, int]) -> None:
    master, num_ranks = open_store(LOOPBACK), sizes[0] * sizes[1]

    def run(rank: int) -> Exchanged:
        store = master if rank == 0 else join_store(LOOPBACK, master.port)
        return exchange(sizes, rank, "cpu", store, LOOPBACK, 0.05)

    with ThreadPoolExecutor(num_ranks) as threads:
        seen = list(threads.map(run, range(num_ranks)))
    assert len({each.rounds for each in seen}) == 1 and seen[0].rounds > 0
    assert seen[0].num_bytes == 4 * NUM_FLOATS and seen[0].device == "cpu"


def test_a_wrong_sum_is_seen() -> None:
    mesh = Mesh(2, 2)
    right = torch.tensor([[0.0, 1.0, 1.0], [0.0, 5.0, 5.0]])  # 0 + 1, and 2 + 3
    _check_sums(right, mesh, 0.0, 0)
    right[1, 2] = 5.5
    with pytest.raises(GroupError, match="stage 0 received wrong sums of stage 1: not 5 everywhere"):
        _check_sums(right, mesh, 0.0, 0)
