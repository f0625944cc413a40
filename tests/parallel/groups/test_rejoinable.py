"""A group that layers keep while its ranks part and meet again."""

import pytest
import torch

from parallel.errors import GroupError
from parallel.groups.group import Group, SingleGroup
from parallel.groups.rejoinable import RejoinableGroup
from tests.parallel.ranks import run_ranks


def test_who_has_left_is_told_and_who_has_met_others_goes_on_with_them() -> None:
    x = torch.randn(3, 4)
    mine = RejoinableGroup(0, 1)
    for _ in range(2):
        with pytest.raises(GroupError, match="rank 0 of 1 has left its group"):
            mine.all_reduce(x)
        mine.abort()  # of no group, by a thread that comes late
        mine.join(SingleGroup())
        assert mine.is_capturable
        assert torch.equal(mine.all_reduce(x), x)
        mine.leave()


def test_it_exchanges_as_the_group_that_it_has_joined() -> None:
    parts = torch.randn(2, 3, 4)

    def exchange(tp: Group, _: Group) -> list[torch.Tensor]:
        mine = RejoinableGroup(tp.rank, tp.size)
        mine.join(tp)
        mine.barrier()
        mine.check()
        return [mine.all_reduce(parts[tp.rank]), mine.all_gather(parts[tp.rank], 0)]

    for added, gathered in run_ranks(2, exchange):
        assert torch.equal(added, parts[0] + parts[1])
        assert torch.equal(gathered, torch.cat(list(parts)))
