"""Rank arithmetic: which rank is where in the grid of pipeline stages by tensor-parallel ranks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mesh:
    """`tp_size * pp_size` ranks, a stage's tensor-parallel ranks next to each other."""

    tp_size: int
    pp_size: int

    @property
    def size(self) -> int:
        return self.tp_size * self.pp_size

    def coordinates(self, rank: int) -> tuple[int, int]:
        """(pp_rank, tp_rank) of a rank."""
        assert 0 <= rank < self.size, f"rank {rank} of {self.size}"
        return divmod(rank, self.tp_size)
