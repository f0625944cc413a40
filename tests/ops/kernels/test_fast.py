"""cuBLAS's products, or torch's on a CPU: near those of float64, and nothing else of its own."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
from ops import kernels
from ops.kernels import fast
from tests.ops.exact import assert_rounded_once, dtypes
from tests.ops.kernels.where import DEVICE, MARKS

pytestmark = MARKS


@dtypes
def test_products(dtype: torch.dtype) -> None:
    x, weight, bias = (torch.randn(*size, device=DEVICE).to(dtype) for size in ((5, 96), (40, 96), (40,)))
    want = x.double() @ weight.double().T
    assert_rounded_once(fast.linear(x, fast.prepare_linear(weight), bias), want + bias.double(), slack=1e-3)
    assert fast.linear_float32(x, fast.prepare_linear(weight)).dtype == torch.float32
    assert_rounded_once(fast.linear_float32(x, fast.prepare_linear(weight)), want)
    assert_rounded_once(fast.linear_tree(x, fast.prepare_tree_linear(weight, 4)), want)


def test_gate_and_up_are_cast_before_the_activation() -> None:
    x, weight = torch.randn(5, 96, device=DEVICE), torch.randn(40, 96, device=DEVICE)
    gate, up = (x.double() @ weight.double().T).chunk(2, 1)
    assert_rounded_once(fast.gate_up_silu(x, fast.prepare_gate_up(weight)), F.silu(gate) * up, slack=1e-5)


def test_nothing_but_products_is_its_own() -> None:
    own = {name for name in kernels.__all__ if getattr(fast, name) is not getattr(kernels, name)}
    products = {"linear", "linear_float32", "linear_tree", "linear_leaves", "gate_up_silu", "linear_rotary_and_cache"}
    assert own == products | {"NAME", "EXACT", "QUANTIZATIONS", "PUBLISHED"}
