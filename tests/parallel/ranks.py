"""Ranks as threads of this process, joined by real gloo groups."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from parallel.groups.connect import connect
from parallel.groups.group import Group
from parallel.groups.mesh import Mesh

CPU = torch.device("cpu")
Result = TypeVar("Result")


def run_ranks(
    tp_size: int, function: Callable[[Group, Group], Result], *, pp_size: int = 1, seconds: float = 20
) -> list[Result]:
    """What function(tp, pp) returns on each rank, in order of rank; the first rank's exception, if
    any, is raised.
    """
    mesh = Mesh(tp_size, pp_size)
    store = dist.HashStore()
    groups: list[tuple[Group, Group]] = []  # kept until every rank is done, so that what is still being sent arrives

    def run(rank: int) -> Result:
        tp, pp = connect(mesh, rank, store, CPU, timedelta(seconds=seconds), "127.0.0.1")
        groups.append((tp, pp))
        with torch.inference_mode():
            return function(tp, pp)

    with ThreadPoolExecutor(mesh.size, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [future.result() for future in [pool.submit(run, rank) for rank in range(mesh.size)]]
