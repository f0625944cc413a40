"""The gated activation: silu(gate) * up."""

import torch.nn.functional as F
from torch import Tensor

from ops.checks import check_gate_up
from ops.interface import Quantization, Weight, check_shape
from ops.reference.matmul.linear import Prepared, multiply, stored


def prepare_gate_up(weight: Weight, quantization: Quantization | None = None) -> Prepared:
    """weight [2 * I, D] dtype, gate's rows first."""
    check_gate_up(weight)
    return stored(weight, quantization)


def gate_up_silu(x: Tensor, weight: Prepared) -> Tensor:
    gate, up = multiply(x, weight).chunk(2, dim=1)
    return (F.silu(gate) * up).to(x.dtype)


def silu_and_mul(x: Tensor) -> Tensor:
    check_shape("x", x, (None, None))
    gate, up = x.float().chunk(2, dim=1)
    return (F.silu(gate) * up).to(x.dtype)
