import inspect

import pytest
import torch

from ops.interface import Ops, check_shape


def test_every_backend_has_the_functions_and_signatures_of_the_interface(ops: Ops) -> None:
    for name, function in inspect.getmembers(Ops, inspect.isfunction):
        if not name.startswith("_"):
            wanted = list(inspect.signature(function).parameters)[1:]
            assert list(inspect.signature(getattr(ops, name)).parameters) == wanted, name


def test_a_shape_fits_where_its_sizes_do() -> None:
    check_shape("x", torch.zeros(2, 3), (2, 3))
    check_shape("x", torch.zeros(2, 3), (None, 3), torch.float32)
    check_shape("x", torch.zeros(0, 3), (None, None))


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        (torch.zeros(2, 3), (2, 4), r"x has shape \[2, 3\], not \[2, 4\]"),
        (torch.zeros(2, 3), (None, None, None), r"x has shape \[2, 3\], not \[None, None, None\]"),
        (torch.zeros(2, 3).bfloat16(), (2, 3), "x is torch.bfloat16, not torch.float32"),
        (torch.zeros(3, 2).T, (2, 3), "x is not contiguous"),
    ],
)
def test_what_does_not_fit_is_named(tensor: torch.Tensor, shape: tuple[int | None, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_shape("x", tensor, shape, torch.float32)
