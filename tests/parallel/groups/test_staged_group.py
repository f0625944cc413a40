"""Exchange through host memory: everything that a group does, on tensors of any device."""

import torch

from ops.tree import add_tree
from parallel.groups.group import Group, SingleGroup
from parallel.groups.staged_group import StagedGroup, stage
from tests.parallel.ranks import CPU, run_ranks


def test_collectives_are_those_of_the_group_below() -> None:
    parts = torch.randn(2, 3, 5)

    def exchange(tp: Group, _: Group) -> list[torch.Tensor]:
        staged, mine = StagedGroup(tp, CPU), parts[tp.rank].clone()
        assert (staged.rank, staged.size) == (tp.rank, 2)
        staged.barrier()
        return [staged.all_reduce(mine), staged.all_gather(mine, 1)]

    for added, gathered in run_ranks(2, exchange):
        assert torch.equal(added, add_tree(list(parts)))
        assert torch.equal(gathered, torch.cat(list(parts), 1))


def test_messages_between_stages() -> None:
    message = torch.randn(4, 8).bfloat16()

    def exchange(_: Group, pp: Group) -> torch.Tensor:
        staged = StagedGroup(pp, CPU)
        if pp.rank == 0:
            staged.send(message, 1)
            staged.barrier()
            return message
        got = staged.recv((4, 8), torch.bfloat16, 0)
        staged.barrier()
        return got

    assert torch.equal(*run_ranks(1, exchange, pp_size=2))


def test_a_rank_alone_has_nothing_to_stage() -> None:
    tp, pp = stage((SingleGroup(), SingleGroup()), CPU)
    assert isinstance(tp, SingleGroup)
    assert isinstance(pp, SingleGroup)
