"""A rank of a group, alone in the process: it computes its share and nothing is exchanged."""

from dataclasses import dataclass

import torch
from torch import Tensor

from parallel.groups.group import SingleGroup


@dataclass
class Alone(SingleGroup):
    """Group(rank, size) for what a rank does before, or after, it hears of the others."""

    rank: int
    size: int


@dataclass
class TensorWeights:
    """Weights from a dictionary."""

    tensors: dict[str, Tensor]
    dtype: torch.dtype = torch.float32

    def read(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        part = self.tensors[name][rows if columns is None else (rows, columns)]
        return part.to(self.dtype).clone()

    def linear(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        return self.read(f"{name}.weight", rows, columns)
