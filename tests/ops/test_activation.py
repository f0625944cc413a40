import pytest
import torch
from torch import Tensor

from ops.interface import Ops
from tests.ops.exact import assert_rounded_once, dtypes


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


@dtypes
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_silu_and_mul(ops: Ops, device: torch.device, dtype: torch.dtype, rows: int) -> None:
    x = (torch.randn(rows, 2 * 24, device=device) * 3).to(dtype)
    gate, up = x.double().chunk(2, dim=1)
    assert_rounded_once(ops.silu_and_mul(x), silu(gate) * up)


@dtypes
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_gate_up_silu_casts_once(ops: Ops, device: torch.device, dtype: torch.dtype, rows: int) -> None:
    x, weight = torch.randn(rows, 64, device=device).to(dtype), torch.randn(48, 64, device=device).to(dtype)
    gate, up = (x.double() @ weight.double().T).chunk(2, dim=1)
    got = ops.gate_up_silu(x, ops.prepare_gate_up(weight))
    assert got.dtype == dtype
    assert_rounded_once(got, silu(gate) * up)


def test_an_odd_number_of_rows_is_refused(ops: Ops, device: torch.device) -> None:
    with pytest.raises(ValueError, match="47 rows"):
        ops.prepare_gate_up(torch.randn(47, 64, device=device))
