"""Fields of a quantization_config, and how they are refused."""

from typing import Any

import pytest

from parallel.errors import UnsupportedModel
from parallel.spec.published.fields import Fields


def refused(fields: dict[str, Any], read: str, *args: Any) -> str:
    with pytest.raises(UnsupportedModel) as error:
        getattr(Fields(fields), read)(*args)
    return str(error.value)


@pytest.mark.parametrize(
    ("value", "read", "args", "supported"),
    [
        (5, "require", (4, 8), "4 or 8"),
        (True, "require", (1,), "1"),  # not an integer
        (4.0, "require", (4,), "4"),
        ("4", "integer", (8,), "an integer"),
        (True, "integer", (8,), "an integer"),
        (1, "boolean", (True,), "true or false"),
        (8, "group_size", (128,), "a multiple of 8 from 16 on, or -1"),
        (36, "group_size", (128,), "a multiple of 8 from 16 on, or -1"),
        (None, "group_size", (128,), "a multiple of 8 from 16 on, or -1"),
        (["a", 1], "names", (), "a list of names"),
        ("a", "names", (), "a list of names"),
        ([], "inner", (), "an object"),
    ],
)
def test_errors_name_the_field_its_value_and_what_is_supported(
    value: Any, read: str, args: tuple[Any, ...], supported: str
) -> None:
    told = refused({"x": value}, read, "x", *args)
    assert told == f"config.json: quantization_config.x={value!r} is not supported; {supported} is"


def test_defaults() -> None:
    fields = Fields({"whole": -1, "null": None, "size": 64, "inner": {"deep": 3}})
    fields.require("absent", "a", default="a")
    assert (fields.integer("absent", 8), fields.boolean("absent", True), fields.names("absent")) == (8, True, ())
    assert [fields.group_size(name, None) for name in ("whole", "null", "absent", "size")] == [None, None, None, 64]
    assert fields.group_size("absent", 128) == 128
    assert fields.inner("absent") is None and fields.inner("null") is None
    inner = fields.inner("inner")
    assert inner is not None
    with pytest.raises(UnsupportedModel, match=r"quantization_config\.inner\.deep=3"):
        inner.require("deep", 4)


def test_fields_that_are_not_known() -> None:
    Fields({"read": 1, "other": 2, "empty": {}, "null": None}).check_known("read null", "other another")
    with pytest.raises(UnsupportedModel, match=r"quantization_config\.new='x' is not known here, and not computed"):
        Fields({"read": 1, "new": "x"}).check_known("read")


def test_a_long_value_is_cut() -> None:
    assert len(refused({"x": "a" * 10_000}, "integer", "x", 8)) < 400
