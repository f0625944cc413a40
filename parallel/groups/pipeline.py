"""A pipeline stage: its number, the number of stages, and what stages exchange: the residual
stream, and tokens that the last one has drawn.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from parallel.groups.group import Group


@dataclass(frozen=True, slots=True)
class Stage:
    """`group` joins the ranks that hold the same shard of every stage, in order of stage; None if
    there is one stage.
    """

    rank: int
    size: int
    group: Group | None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def send(self, residual: Tensor) -> None:
        """Send the residual stream [T, D] to the next stage; it must not be written to
        afterwards.
        """
        assert self.group is not None and not self.is_last
        self.group.send(residual, self.rank + 1)

    def recv(self, num_rows: int, hidden: int, dtype: torch.dtype) -> Tensor:
        """The residual stream [num_rows, hidden] of the stage before."""
        assert self.group is not None and not self.is_first
        return self.group.recv((num_rows, hidden), dtype, self.rank - 1)

    def return_tokens(self, token_ids: Tensor) -> None:
        """Send tokens [R] int32 from the last stage to the first one."""
        assert self.group is not None and self.is_last
        self.group.send(token_ids, 0)

    def take_tokens(self, num_rows: int) -> Tensor:
        """The tokens [num_rows] int32 that the last stage returns next."""
        assert self.group is not None and self.is_first
        return self.group.recv((num_rows,), torch.int32, self.size - 1)
