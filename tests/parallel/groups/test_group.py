import pytest
import torch

from ops.tree import add_tree
from parallel.errors import GroupError
from parallel.groups.group import Group, SingleGroup
from tests.parallel.ranks import run_ranks


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_reduce_adds_in_tree_order(size: int) -> None:
    parts = torch.randn(size, 100, 7)
    want = add_tree(list(parts))
    for got in run_ranks(size, lambda tp, _: tp.all_reduce(parts[tp.rank])):
        assert torch.equal(got, want)
    if size == 4:
        assert not torch.equal(parts.sum(0), want), "these numbers do not tell a tree from a chain"


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("dim", [0, 1])
def test_all_gather(size: int, dim: int) -> None:
    parts = torch.randn(size, 3, 5)
    for got in run_ranks(size, lambda tp, _: tp.all_gather(parts[tp.rank], dim)):
        assert torch.equal(got, torch.cat(list(parts), dim))


def test_send_does_not_wait_for_the_receiver_and_keeps_order() -> None:
    messages = [torch.randn(50, 8).bfloat16() for _ in range(4)]

    def exchange(_: Group, pp: Group) -> list[torch.Tensor]:
        if pp.rank == 0:
            pp.send(messages[0], 1)
            pp.barrier()  # rank 1 has not asked for anything yet
            for message in messages[1:]:
                pp.send(message, 1)
            pp.barrier()
            return messages
        pp.barrier()
        got = [pp.recv((50, 8), torch.bfloat16, 0) for _ in messages]
        pp.barrier()
        return got

    sent, got = run_ranks(1, exchange, pp_size=2)
    assert all(torch.equal(left, right) for left, right in zip(sent, got, strict=True))


def test_a_rank_that_does_not_answer_is_an_error_in_time() -> None:
    def wait_for_the_other(tp: Group, _: Group) -> str:
        if tp.rank == 1:
            return "silent"
        with pytest.raises(GroupError, match=r"rank 0 of 2: "):
            tp.all_reduce(torch.zeros(3))
        return "told"

    assert run_ranks(2, wait_for_the_other, seconds=0.5) == ["told", "silent"]


def test_partial_sums_must_be_float32() -> None:
    with pytest.raises(AssertionError, match="bfloat16"):
        run_ranks(2, lambda tp, _: tp.all_reduce(torch.zeros(3).bfloat16()))


def test_a_group_of_one_has_nobody_to_talk_to() -> None:
    group = SingleGroup()
    group.barrier()
    with pytest.raises(AssertionError):
        group.send(torch.zeros(1), 1)
    with pytest.raises(AssertionError):
        group.recv((1,), torch.float32, 1)
