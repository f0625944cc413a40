"""Tensors that another program broadcasts, a trainer say: whoever has a store's address and torch
can be rank 0.
"""

from datetime import timedelta

import torch
from torch import Tensor

from parallel.errors import GroupError
from parallel.groups.meeting import PrefixStore, open_store
from parallel.groups.torch_join import gloo_group, nccl_group

SENDER = 0  # its rank


class Broadcasts:
    """One of the ranks that receive, in a process group of its own: torch's global state is left
    alone. Tensors come over gloo to the CPU, over NCCL to any other device.
    """

    def __init__(
        self,
        host: str,
        port: int,
        name: str,
        rank: int,
        size: int,
        device: torch.device,
        timeout: timedelta,
        hostname: str,
    ) -> None:
        """Returns when all ranks have met at the sender's store, below the prefix `name`.
        `hostname`: an address of this machine that the others can reach; `timeout`: of every
        broadcast, too. Raises GroupError.
        """
        self._rank = rank
        self._device = device
        # As long as the group lives.
        self._store = open_store(host, port, is_master=False, timeout=timeout)
        try:
            below = PrefixStore(name, self._store)
            if device.type == "cpu":
                self._group = gloo_group(below, rank, size, timeout, hostname)
            else:
                self._group = nccl_group(below, rank, size, timeout)
        except RuntimeError as error:
            raise GroupError(f"rank {rank} of {size} has not met the others: {error}") from None

    def receive(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """The next one, in the host's memory. `dtype`: torch's name for it. Raises GroupError."""
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)
        try:
            self._group.broadcast(tensor, SENDER).wait()
        except RuntimeError as error:
            raise GroupError(f"rank {self._rank}: {error}") from None
        return tensor.cpu()
