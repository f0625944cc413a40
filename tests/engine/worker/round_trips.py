"""Refuses whatever would make the host wait for the device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operations whose result the host has to wait for.
ROUND_TRIPS = {"_local_scalar_dense", "item", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero"}


class NoRoundTrips(TorchDispatchMode):
    """Refuses the operations of torch that make the host wait, or the shape of whose result depends
    on values.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ROUND_TRIPS, f"{name} waits for the device"
        if name in ("index", "index_put", "index_put_"):
            masks = [index for index in args[1] if index is not None and index.dtype == torch.bool]
            assert not masks, f"{name} by a mask waits for the device"
        return func(*args, **(kwargs or {}))


@contextmanager
def refusing_round_trips(device: torch.device) -> Iterator[None]:
    """By the device's own check, or on a CPU, in its place, by the names of operations."""
    if device.type != "cuda":
        with NoRoundTrips():
            yield
        return
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
