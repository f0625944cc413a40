"""Makes a rank's `TorchGroup`: of gloo's process group on CPU, on GPU of NCCL's and of memory that
ranks map of each other.
"""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from parallel.groups import symmetric
from parallel.groups.meeting import Meeting
from parallel.groups.torch_group import TorchGroup

# Read by NCCL's process groups when they are made. 3: at the time limit, or when NCCL reports an
# error, the process ends and communicators are left alone; cleaning them up first would let the
# device continue with wrong sums.
NCCL_ENVIRONMENT = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_NCCL_BLOCKING_WAIT": "0"}


def join(
    rank: int,
    size: int,
    meeting: Meeting,
    store: Store,
    device: torch.device,
    timeout: timedelta,
    hostname: str,
    *,
    adds: bool,
) -> TorchGroup:
    """This rank's group; every rank must call it with the same stores, of which one wraps the
    other, used for nothing else. meeting: the abortable one, used to wait for ranks; adds: whether
    the ranks will compute sums.
    """
    if device.type != "cuda":
        return TorchGroup(rank, size, device, gloo_group(store, rank, size, timeout, hostname), None)
    os.environ.update(NCCL_ENVIRONMENT)
    mapped = PrefixStore("symmetric", store)
    memory = symmetric.join(rank, size, meeting, mapped, device, timeout) if adds else None
    process_group = nccl_group(PrefixStore("nccl", store), rank, size, timeout)
    return TorchGroup(rank, size, device, process_group, memory)


def gloo_group(store: Store, rank: int, size: int, timeout: timedelta, hostname: str) -> Any:
    """torch's process group. hostname: an address of this machine that other ranks can reach."""
    gloo: Any = dist.ProcessGroupGloo  # whose type annotation lacks options
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=hostname)]
    options._timeout = timeout
    return gloo(store, rank, size, options)


def nccl_group(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    """torch's process group, on the current device."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
