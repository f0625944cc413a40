"""Tools whose calls Qwen3-Coder's format cannot say."""

import json
from typing import Any

import pytest

from cluster.api.answers.coder_limits import unenforced, unwritable
from cluster.api.answers.form import Form
from cluster.api.answers.parts import Arguments, joined

LISTED = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


def arguments_of(parameters: dict[str, Any], **texts: str) -> Any:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    shown = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in texts.items())
    parser = Form(tool_format="qwen3_coder", tools=[tool]).parser([])
    parts = [*parser.add(f"<tool_call>\n<function=f>\n{shown}</function>\n</tool_call>"), *parser.end()]
    [arguments] = [part for part in joined(parts) if isinstance(part, Arguments)]
    return json.loads(arguments.text)


@pytest.mark.parametrize("name", ["a>b", "a>", " a", "a\n", "<parameter=x>"])
def test_names_that_would_be_cut_are_told(name: str) -> None:
    assert arguments_of(LISTED, **{name: "5"}).keys() != {name}
    for parameters in (
        {"properties": {name: {}}},
        {"required": [name]},
        {"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [{"properties": {name: {}}}, {}]}}},
    ):
        assert "a parameter's name has no" in str(unwritable(parameters)).lower()


@pytest.mark.parametrize("name", ["a", "a\nb", "a<b", 'a"b', "a b", "é😀", "a\\b", "a/b", "$ref"])
def test_other_names_come_as_they_are(name: str) -> None:
    assert unwritable({"properties": {name: {"type": "integer"}}}) is None
    assert arguments_of({"properties": {name: {"type": "integer"}}}, **{name: "5"}) == {name: 5}


@pytest.mark.parametrize(
    "parameters",
    [
        LISTED | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [LISTED, {"properties": {"c": {}}}]},
        LISTED | {"minProperties": 1},
        LISTED | {"dependentRequired": {"a": ["b"]}},
        {"$ref": "#/$defs/x", "$defs": {"x": LISTED | {"not": {"required": ["a"]}}}},
    ],
)
def test_what_a_forced_call_would_not_keep_to_is_told(parameters: dict[str, Any]) -> None:
    assert "cannot be forced" in str(unenforced(parameters))
    assert unenforced(LISTED) is unenforced({"$ref": "#/$defs/x", "$defs": {"x": LISTED}}) is None


def test_parameters_of_alternatives_have_their_types() -> None:
    one = {"properties": {"kind": {"const": "one"}, "size": {"type": "integer"}}}
    other = {"properties": {"kind": {"const": "other"}, "at": {"$ref": "#/$defs/place"}}}
    place = {"type": "object", "properties": {"x": {"type": "number"}}}
    parameters = {"type": "object", "anyOf": [{"$ref": "#/$defs/one"}, other], "$defs": {"one": one, "place": place}}
    assert arguments_of(parameters, kind="one", size="5") == {"kind": "one", "size": 5}
    assert arguments_of(parameters, kind="other", at='{"x": 1.5}') == {"kind": "other", "at": {"x": 1.5}}
    circle = {"anyOf": [{"$ref": "#/$defs/circle"}, {"properties": {"x": {"type": "integer"}}}]}
    assert arguments_of({"$ref": "#/$defs/circle", "$defs": {"circle": circle}}, x="5") == {"x": 5}
    assert arguments_of({"allOf": [{"additionalProperties": {"type": "integer"}}]}, size="5") == {"size": 5}
