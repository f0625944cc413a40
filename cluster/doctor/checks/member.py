"""A process that exchanges numbers with others, as a rank would."""

import importlib
from collections.abc import Sequence
from typing import Any

import ray

from cluster.sockets import LOOPBACK


class Member:
    """An actor: one rank."""

    def __init__(self) -> None:
        # Not imported above: whoever reads this module needs no torch.
        self._ranks: Any = importlib.import_module("engine.worker.ranks")
        self._exchange: Any = importlib.import_module("engine.worker.trials.exchange")
        self._store: Any = None

    def address(self) -> tuple[str, str]:
        """The node's id and address."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def open_store(self, host: str) -> int:
        self._store = self._ranks.open_store(host)
        return int(self._store.port)

    def exchange(
        self, sizes: tuple[int, int], rank: int, device: str, host: str, store: tuple[str, int], seconds: float
    ) -> Any:
        """sizes: of tensor and pipeline parallelism; store: where rank 0 has opened one."""
        if rank != 0:
            self._store = self._ranks.join_store(*store)
        return self._exchange.exchange(sizes, rank, device, self._store, host, seconds)


def hosts_of(places: Sequence[tuple[str, str]]) -> list[str]:
    """The address that each one listens on, as ranks do; `places`: node and address of each."""
    is_one_node = len({node_id for node_id, _ in places}) == 1
    return [LOOPBACK if is_one_node else address for _, address in places]
