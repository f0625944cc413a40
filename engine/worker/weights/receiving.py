"""A member of a group in which a trainer broadcasts new weights: it holds none of the model."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from hashlib import sha256

import torch
from torch import Tensor

from engine.errors import InvalidConfig
from parallel.errors import GroupError
from parallel.given.broadcasts import Broadcasts


class Member:
    """One of `size`, of which the trainer is rank 0. For one thread at a time."""

    def __init__(
        self, host: str, port: int, name: str, rank: int, size: int, device: str, seconds: float, hostname: str
    ) -> None:
        """See `Broadcasts`. Raises InvalidConfig."""
        try:
            self._broadcasts = Broadcasts(
                host, port, name, rank, size, torch.device(device), timedelta(seconds=seconds), hostname
            )
        except GroupError as error:
            raise InvalidConfig(str(error)) from None

    def receive(
        self, offered: Mapping[str, tuple[str, tuple[int, ...], str | None]]
    ) -> Iterator[tuple[str, Tensor, str]]:
        """Each one's name, the tensor on the host, and the SHA-256 of its bytes, in the order of
        `offered`, which says of each its dtype, its shape and, unless None, that digest. Raises
        InvalidConfig naming the tensor that has not come, or not as it was sent.
        """
        for name, (dtype, shape, wanted) in offered.items():
            try:
                tensor = self._broadcasts.receive(shape, dtype)
            except GroupError as error:
                raise InvalidConfig(f"tensor {name} has not come: {error}") from None
            digest = sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).hexdigest()
            if wanted is not None and wanted.lower() != digest:
                raise InvalidConfig(f"tensor {name} came with SHA-256 {digest}, not {wanted}")
            yield name, tensor, digest
