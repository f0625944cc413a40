"""What stages hand to each other."""

import torch

from parallel.groups.group import Group
from parallel.groups.pipeline import Stage
from tests.parallel.ranks import run_ranks


def test_the_residual_goes_from_stage_to_stage_in_order() -> None:
    residuals = [torch.randn(3, 4).bfloat16() for _ in range(3)]

    def walk(_: Group, pp: Group) -> list[torch.Tensor]:
        stage = Stage(pp.rank, pp.size, pp)
        assert (stage.is_first, stage.is_last) == (pp.rank == 0, pp.rank == 2)
        seen = []
        for residual in residuals:
            mine = residual if stage.is_first else stage.recv(3, 4, torch.bfloat16)
            seen.append(mine)
            if not stage.is_last:
                stage.send(mine + 1)
        pp.barrier()
        return seen

    last = run_ranks(1, walk, pp_size=3)[2]
    assert all(torch.equal(got, residual + 1 + 1) for got, residual in zip(last, residuals, strict=True))
