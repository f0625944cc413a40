import pytest
import torch
import torch.nn.functional as F

import ops
from ops import reference
from parallel.errors import InvalidCheckpoint
from parallel.groups.group import Group
from parallel.moe import MoE
from parallel.spec.layer import MoEShape
from tests.parallel.alone import Alone, TensorWeights
from tests.parallel.ranks import run_ranks

HIDDEN, ROWS = 48, 23
SHAPES = {
    "plain": MoEShape(16, 3, 24, normalizes=True, shared_intermediate_size=0),
    "with a shared expert": MoEShape(16, 3, 24, normalizes=False, shared_intermediate_size=64),
}


def random_weights(shape: MoEShape) -> TensorWeights:
    def mlp(prefix: str, inner: int) -> dict[str, torch.Tensor]:
        sizes = {"gate_proj": (inner, HIDDEN), "up_proj": (inner, HIDDEN), "down_proj": (HIDDEN, inner)}
        return {f"{prefix}.{name}.weight": torch.randn(size) / 4 for name, size in sizes.items()}

    tensors = {"mlp.gate.weight": torch.randn(shape.num_experts, HIDDEN)}
    for index in range(shape.num_experts):
        tensors |= mlp(f"mlp.experts.{index}", shape.intermediate_size)
    if shape.shared_intermediate_size:
        tensors |= mlp("mlp.shared_expert", shape.shared_intermediate_size)
        tensors["mlp.shared_expert_gate.weight"] = torch.randn(1, HIDDEN)
    return TensorWeights(tensors)


def expected(shape: MoEShape, weights: TensorWeights, x: torch.Tensor) -> torch.Tensor:
    """Every expert on every row, in float64, and zeros for those that were not chosen."""
    tensors = {name: tensor.double() for name, tensor in weights.tensors.items()}

    def mlp(prefix: str) -> torch.Tensor:
        gate, up = (x.double() @ tensors[f"{prefix}.{name}_proj.weight"].T for name in ("gate", "up"))
        return (F.silu(gate) * up) @ tensors[f"{prefix}.down_proj.weight"].T

    probabilities = (x.double() @ tensors["mlp.gate.weight"].T).softmax(1)
    top = probabilities.topk(shape.num_chosen)
    chosen = torch.zeros_like(probabilities).scatter(1, top.indices, top.values)
    if shape.normalizes:
        chosen /= chosen.sum(1, keepdim=True)
    total = sum(chosen[:, i, None] * mlp(f"mlp.experts.{i}") for i in range(shape.num_experts))
    if shape.shared_intermediate_size:
        total += torch.sigmoid(x.double() @ tensors["mlp.shared_expert_gate.weight"].T) * mlp("mlp.shared_expert")
    return total


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_experts_on_any_number_of_ranks(size: int, shape: MoEShape) -> None:
    weights, x = random_weights(shape), torch.randn(ROWS, HIDDEN)

    def compute(tp: Group, _: Group) -> torch.Tensor:
        layer = MoE(shape, num_leaves=8, ops=reference, group=tp)
        layer.load(weights, "mlp")
        return layer(x)

    for got in run_ranks(size, compute):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, expected(shape, weights, x).float(), rtol=1e-4, atol=1e-4)


def test_a_rank_has_its_own_experts_only() -> None:
    shape = SHAPES["plain"]
    layer = MoE(shape, num_leaves=4, ops=reference, group=Alone(1, 4))
    layer.load(random_weights(shape), "mlp")
    assert (layer.experts.first, len(layer.experts.weights), layer.experts.num_leaves) == (4, 4, 1)
    assert layer.router.shape == (16, HIDDEN)


def test_experts_that_a_backend_does_not_compute_are_refused_with_the_layer() -> None:
    shape = MoEShape(4, 2, 22, normalizes=True, shared_intermediate_size=0)
    layer = MoE(shape, num_leaves=2, ops=ops.select("cpu", torch.device("cpu"), "int8"), group=Alone(0, 1))
    with pytest.raises(InvalidCheckpoint, match=r"^mlp\.experts: experts of 48 and 22 columns: only multiples of 4"):
        layer.load(random_weights(shape), "mlp")
