"""Errors about a chat's field name the field that the client sent."""

import pytest

from cluster.api.dialects.naming import named
from engine.errors import InvalidRequest

NAMES = [(r"max_tokens", "max_output_tokens"), (r"messages\[(\d+)\]\.content", r"input[\1].content")]


@pytest.mark.parametrize(
    ("param", "name"),
    [
        ("max_tokens", "max_output_tokens"),
        ("messages[12].content", "input[12].content"),
        ("messages[12].content[0]", "messages[12].content[0]"),  # no name is known
        ("top_p", "top_p"),
    ],
)
def test_a_field_is_renamed_wherever_it_is_named(param: str, name: str) -> None:
    with pytest.raises(InvalidRequest) as raised, named(NAMES):
        raise InvalidRequest(f"{param} is wrong", param=param, code="invalid_value")
    assert (raised.value.param, raised.value.message) == (name, f"{name} is wrong")
    assert raised.value.code == "invalid_value"


def test_an_error_about_no_field_stays() -> None:
    with pytest.raises(InvalidRequest) as raised, named(NAMES):
        raise InvalidRequest("max_tokens and more", code="x")
    assert (raised.value.param, raised.value.message) == (None, "max_tokens and more")
