"""Makes this rank's groups, over the best transport that its ranks have.

CPU ranks of one machine use shared memory if they can (`shm_group`), otherwise gloo
(`torch_join`); CUDA ranks use NCCL, and add small tensors through memory that they map of each
other (`symmetric`). Ranks that share a GPU exchange through the host's memory (`staged_group`).
"""

import threading
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from parallel.groups import shm_group, torch_join
from parallel.groups.group import Group, SingleGroup
from parallel.groups.meeting import AbortableStore
from parallel.groups.mesh import Mesh
from parallel.groups.staged_group import stage

CPU = torch.device("cpu")


def connect(
    mesh: Mesh,
    rank: int,
    store: Store | None,
    device: torch.device,
    timeout: timedelta,
    hostname: str,
    aborted: threading.Event | None = None,
) -> tuple[Group, Group]:
    """This rank's tensor-parallel and pipeline groups; every rank of the mesh must call it.

    `store` is how the ranks find each other (`open_store`; None for a rank alone); `hostname` an
    address of this machine that they can reach; `timeout` bounds every collective. Once `aborted`
    is set, ranks that are to share memory stop waiting here for missing ranks. If any two ranks
    share a GPU, all of them exchange through host memory.
    """
    if mesh.size == 1:
        return SingleGroup(), SingleGroup()
    assert store is not None, "ranks that are not alone meet at a store"
    if device.type != "cuda":
        return connect_directly(mesh, rank, store, device, timeout, hostname, aborted)
    gpus = AbortableStore(store, aborted or threading.Event(), timeout).under("gpus")
    gpus.set(str(rank), str(torch.cuda.get_device_properties(device).uuid))
    if len({gpus.get(str(peer)) for peer in range(mesh.size)}) == mesh.size:
        return connect_directly(mesh, rank, store, device, timeout, hostname, aborted)
    return stage(connect_directly(mesh, rank, store, CPU, timeout, hostname, aborted), device)


def connect_directly(
    mesh: Mesh,
    rank: int,
    store: Store,
    device: torch.device,
    timeout: timedelta,
    hostname: str,
    aborted: threading.Event | None = None,
) -> tuple[Group, Group]:
    """As `connect`, for ranks that share no GPU, or are to map each other's memory although they
    do.
    """
    pp_rank, tp_rank = mesh.coordinates(rank)
    abortable = AbortableStore(store, aborted or threading.Event(), timeout)
    tp = _group(f"tp.{pp_rank}", tp_rank, mesh.tp_size, store, abortable, device, timeout, hostname, adds=True)
    pp = _group(f"pp.{tp_rank}", pp_rank, mesh.pp_size, store, abortable, device, timeout, hostname, adds=False)
    return tp, pp


def _group(
    name: str,
    rank: int,
    size: int,
    store: Store,
    abortable: AbortableStore,
    device: torch.device,
    timeout: timedelta,
    hostname: str,
    *,
    adds: bool,
) -> Group:
    if size == 1:
        return SingleGroup()
    if device.type == "cpu":
        shared = shm_group.join(rank, size, abortable.under(f"shm.{name}"), timeout)
        if shared is not None:
            return shared
    meeting, prefixed = abortable.under(f"meeting.{name}"), PrefixStore(name, store)
    return torch_join.join(rank, size, meeting, prefixed, device, timeout, hostname, adds=adds)
