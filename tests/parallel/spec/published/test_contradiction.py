"""Weights that are not in the form config.json says are told from unknown tensors."""

from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

import pytest

from parallel.spec.published.contradiction import FIELD, REMEDY, contradiction
from parallel.spec.published.read import read_scheme
from parallel.spec.stored import complaint

LINEAR = "model.layers.0.mlp.down_proj"
NORM = "model.norm.weight"
PLAIN, CODES, PACKED = {f"{LINEAR}.weight"}, {f"{LINEAR}.qweight", f"{LINEAR}.scales"}, {f"{LINEAR}.weight_packed"}
FLOAT8 = {f"{LINEAR}.weight", f"{LINEAR}.weight_scale"}


class Tensor(NamedTuple):
    path: Path
    shape: tuple[int, ...]
    dtype: str


@pytest.mark.parametrize(
    ("part", "dtype", "known", "quantizes", "says"),
    [
        (
            "qweight",
            "I32",
            PLAIN,
            False,
            f"is in the form of GPTQ or AWQ, but config.json has no quantization_config: {REMEDY}",
        ),
        (
            "weight_packed",
            "I32",
            PLAIN,
            True,
            f"is in the form of compressed-tensors, but {FIELD} leaves {LINEAR} as it is: {REMEDY}",
        ),
        ("weight", "I8", PLAIN, False, f"holds 8-bit codes, but config.json has no quantization_config: {REMEDY}"),
        (
            "weight",
            "BF16",
            FLOAT8,
            True,
            f"is not quantized, but by {FIELD} it is in the form of compressed-tensors: {REMEDY}, or remove the field",
        ),
        (
            "weight",
            "F16",
            CODES,
            True,
            f"is not quantized, but by {FIELD} it is in the form of GPTQ or AWQ: {REMEDY}, or remove the field",
        ),
        (
            "qweight",
            "I32",
            PACKED,
            True,
            f"is in the form of GPTQ or AWQ, but by {FIELD} it is in the form of compressed-tensors: {REMEDY}",
        ),
        ("g_idx", "I32", CODES, True, None),
        ("weight", "I64", PLAIN, False, None),
        ("bias", "BF16", PLAIN, False, None),
        ("qweight", "I32", {NORM}, False, None),
    ],
)
def test_it_says_what_is_stored_and_what_the_configuration_says(
    part: str, dtype: str, known: Set[str], quantizes: bool, says: str | None
) -> None:
    assert contradiction(f"{LINEAR}.{part}", dtype, known, quantizes) == says


@pytest.mark.parametrize("known", [{"lm_head.weight"}, PLAIN])
@pytest.mark.parametrize(
    ("part", "dtype"), [("qweight", "I32"), ("weight_shape", "I64"), ("weight_scale", "BF16"), ("weight", "I8")]
)
def test_a_quantized_head_is_named(part: str, dtype: str, known: Set[str]) -> None:
    """Also a tied one, of which the configuration knows no tensor."""
    says = "is of a quantized head, which is not computed; one in floating point would be"
    assert contradiction(f"lm_head.{part}", dtype, known | CODES, True) == says
    assert contradiction("lm_head.weight", "BF16", known | CODES, True) is None


def test_the_check_of_a_folder_says_it() -> None:
    scheme = read_scheme({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}})
    assert scheme is not None
    plain = {f"{LINEAR}.weight": (128, 128), NORM: (128,)}
    forms = scheme.forms(plain)
    folder = Path("model")
    of_codes = {name: Tensor(folder / "a", form.shape, form.dtypes[0]) for name, form in forms.items()}
    of_floats = {name: Tensor(folder / "a", shape, "BF16") for name, shape in plain.items()}
    assert f"a: {LINEAR}.qweight is in the form of GPTQ or AWQ, but" in (
        complaint(folder, of_codes, plain, set()) or ""
    )
    assert f"a: {LINEAR}.weight is not quantized, but" in (complaint(folder, of_floats, forms, set()) or "")
