"""Tries out the collectives that ranks use, for a while, without a model: for `squadron doctor`."""

import time
from dataclasses import dataclass

import torch

from engine.worker.device.pick import pick_device
from engine.worker.ranks import Ranks
from parallel.errors import GroupError
from parallel.groups.meeting import Store
from parallel.groups.mesh import Mesh

NUM_FLOATS = 1 << 16  # of a rank, in each round
SMALL_NUMBERS = 7  # whose sums are exact


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What a rank has seen."""

    rounds: int
    seconds: float
    num_bytes: int  # that a rank gave in each round
    device: str


def exchange(sizes: tuple[int, int], rank: int, device_name: str, store: Store, host: str, seconds: float) -> Exchanged:
    """Have all ranks add and gather numbers for `seconds`, by the clock of rank 0, and check every
    result. `sizes`: of tensor and pipeline parallelism; `store`, `host`: see `Ranks.join`. Raises
    GroupError, InvalidConfig.
    """
    mesh, device = Mesh(*sizes), pick_device(device_name)
    ranks = Ranks(mesh, rank, device.torch_device)
    ranks.join(store, host)
    stage, _ = mesh.coordinates(rank)
    rounds, begin = 0, time.monotonic()
    while True:
        number = float(rounds % SMALL_NUMBERS)
        mine = torch.full((NUM_FLOATS,), number + rank, dtype=torch.float32, device=device.torch_device)
        mine[0] = float(rank == 0 and time.monotonic() > begin + seconds)
        of_stages = ranks.pp.all_gather(ranks.tp.all_reduce(mine).view(1, -1), 0)
        ranks.check()
        _check_sums(of_stages.cpu(), mesh, number, stage)
        rounds += 1
        if bool(of_stages[0, 0]):
            return Exchanged(rounds, time.monotonic() - begin, mine.nbytes, str(device.torch_device))


def _check_sums(of_stages: torch.Tensor, mesh: Mesh, number: float, stage: int) -> None:
    """of_stages: [stages, NUM_FLOATS], each stage's sum over its ranks."""
    for other, found in enumerate(of_stages):
        expected = sum(number + other * mesh.tp_size + rank for rank in range(mesh.tp_size))
        if not bool((found[1:] == expected).all()):
            raise GroupError(f"stage {stage} received wrong sums of stage {other}: not {expected:g} everywhere")
