"""The gated activation: silu(gate) * up."""

import torch.nn.functional as F
from torch import Tensor

from ops.interface import Quantization, check_shape
from ops.reference.quantization import quantize


def prepare_gate_up(weight: Tensor, quantization: Quantization | None = None) -> Tensor:
    """weight [2 * I, D] dtype, gate's rows first -> the same, or what it is quantized to, in float32."""
    check_shape("weight", weight, (None, None))
    if weight.shape[0] % 2:
        raise ValueError(f"weight has {weight.shape[0]} rows; gate and up have as many each")
    return quantize(weight, quantization)


def gate_up_silu(x: Tensor, weight: Tensor) -> Tensor:
    check_shape("x", x, (None, weight.shape[1]))
    gate, up = F.linear(x.float(), weight).chunk(2, dim=1)
    return (F.silu(gate) * up).to(x.dtype)


def silu_and_mul(x: Tensor) -> Tensor:
    check_shape("x", x, (None, None))
    gate, up = x.float().chunk(2, dim=1)
    return (F.silu(gate) * up).to(x.dtype)
