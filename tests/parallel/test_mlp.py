import pytest
import torch
import torch.nn.functional as F

from ops import reference
from parallel.groups.group import Group
from parallel.mlp import GatedMLP
from tests.parallel.alone import Alone, TensorWeights
from tests.parallel.ranks import run_ranks

HIDDEN, INNER, ROWS = 48, 64, 9


def random_weights() -> TensorWeights:
    sizes = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
    return TensorWeights({f"mlp.{name}.weight": torch.randn(size) / 4 for name, size in sizes.items()})


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_ranks_have_the_same_sum(size: int) -> None:
    weights, x = random_weights(), torch.randn(ROWS, HIDDEN)
    gate, up, down = (tensor.double() for tensor in weights.tensors.values())
    want = (F.silu(x.double() @ gate.T) * (x.double() @ up.T)) @ down.T

    def compute(tp: Group, _: Group) -> torch.Tensor:
        layer = GatedMLP(INNER, num_leaves=8, ops=reference, group=tp)
        layer.load(weights, "mlp")
        return layer(x)

    got = run_ranks(size, compute)
    assert all(torch.equal(each, got[0]) for each in got)
    assert got[0].dtype == torch.float32
    torch.testing.assert_close(got[0], want.float(), rtol=1e-5, atol=1e-5)


def test_what_a_rank_adds_is_of_its_own_columns() -> None:
    """The parts of all ranks make up the whole."""
    weights, x = random_weights(), torch.randn(ROWS, HIDDEN)
    parts = []
    for rank in range(4):
        layer = GatedMLP(INNER, num_leaves=8, ops=reference, group=Alone(rank, 4))
        layer.load(weights, "mlp")
        parts.append(layer(x))
    whole = GatedMLP(INNER, num_leaves=8, ops=reference, group=Alone(0, 1))
    whole.load(weights, "mlp")
    torch.testing.assert_close(sum(parts), whole(x), rtol=1e-5, atol=1e-5)
