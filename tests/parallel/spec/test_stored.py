"""What a checkpoint must hold: one check for the driver and for workers."""

from pathlib import Path
from typing import NamedTuple

import pytest

from parallel.spec.stored import complaint


class Tensor(NamedTuple):
    path: Path
    shape: tuple[int, ...]
    dtype: str


FOLDER, FILE = Path("model"), Path("model/model.safetensors")
SHAPES = {"a": (2, 3), "b": (4,)}
WHOLE = {"a": Tensor(FILE, (2, 3), "BF16"), "b": Tensor(FILE, (4,), "BF16")}


@pytest.mark.parametrize(
    ("tensors", "wrong"),
    [
        (WHOLE, None),
        (WHOLE | {"c": Tensor(FILE, (1,), "I64")}, None),
        (WHOLE | {"b": Tensor(FILE, (4,), "F32")}, None),
        (WHOLE | {"d": WHOLE["b"]}, f"{FILE}: the model has no tensor d"),
        (WHOLE | {"b": Tensor(FILE, (5,), "BF16")}, f"{FILE}: b has shape [5], not [4]"),
        (WHOLE | {"b": Tensor(FILE, (4,), "I64")}, f"{FILE}: b is I64; weights may be F32, F16, BF16"),
        ({"a": WHOLE["a"]}, f"{FOLDER}: tensor b is in none of the safetensors files"),
        (WHOLE | {"b": Tensor(FILE, (4,), "F16")}, f"{FILE}: b is F16, and 1 other tensors are BF16"),
    ],
)
def test_complaints_name_file_and_tensor(tensors: dict[str, Tensor], wrong: str | None) -> None:
    assert complaint(FOLDER, tensors, SHAPES, {"c"}) == wrong
