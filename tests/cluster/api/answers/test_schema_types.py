"""Values written without quotes: which type a schema gives them."""

import json
from typing import Any

import pytest

from cluster.api.answers.schema_types import STRING, as_json, json_value, object_schema, resolved, types_of

WHOLE: dict[str, Any] = {
    "$defs": {"unit": {"enum": ["C", 3]}, "circle": {"$ref": "#/$defs/circle"}, "far": {"$ref": "#/$defs/unit"}}
}
WHOLE["$defs"]["list"] = {"anyOf": [{"type": "null"}, {"allOf": [{"$ref": "#/$defs/list"}], "type": "object"}]}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        (
            {"enum": ["a", 1, None, 1.5, [], {}, True]},
            {"string", "integer", "null", "number", "array", "object", "boolean"},
        ),
        ({"const": False}, {"boolean"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "oneOf": [{"const": "x"}]}, {"integer", "null", "string"}),
        ({"$ref": "#/$defs/unit"}, {"string", "integer"}),
        ({"$ref": "#/$defs/far"}, {"string", "integer"}),
        ({"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}]}, {"string", "integer", "null"}),
        ({"$ref": "#/$defs/list"}, {"object", "null"}),
        ({"$ref": "#/$defs/circle"}, STRING),
        ({"$ref": "#/$defs/missing"}, STRING),
        ({"$ref": "http://127.0.0.1/x"}, STRING),
        ({}, STRING),
        (True, STRING),
        (None, STRING),
        ({"type": 5, "enum": 5, "anyOf": 5}, STRING),
    ],
)
def test_the_types_of_a_schema(schema: Any, types: set[str]) -> None:
    assert types_of(schema, WHOLE) == types


@pytest.mark.parametrize(
    ("text", "types", "written"),
    [
        ("3", {"integer"}, "3"),
        ("3", {"number"}, "3"),
        ("3", {"string"}, '"3"'),
        ("3.5", {"integer"}, '"3.5"'),
        (" true\n", {"boolean"}, "true"),
        ("True", {"boolean"}, "true"),
        ("None", {"null"}, "null"),
        ("NaN", {"number"}, '"NaN"'),
        ('{"x": [1, 2]}', {"object"}, '{"x": [1, 2]}'),
        ('"quoted"', {"string"}, '"quoted"'),
        ('"quoted"', {"integer"}, json.dumps('"quoted"')),
        ("Oslo\n", {"string"}, '"Oslo\\n"'),
        ("[1, 2", {"array"}, '"[1, 2"'),
        ("[" * 100_000, {"array"}, json.dumps("[" * 100_000)),
    ],
)
def test_a_text_as_a_value_of_these_types(text: str, types: set[str], written: str) -> None:
    assert json_value(text, frozenset(types)) == written


def test_json_that_no_client_could_read_is_not_written() -> None:
    assert as_json({"å": "\ud800"}) == json.dumps({"å": "\ud800"})
    assert as_json("å") == '"å"'
    with pytest.raises(ValueError, match="Out of range float"):
        as_json(float("inf"))


def test_a_schema_without_a_reference_is_itself() -> None:
    assert resolved({"type": "string"}, WHOLE) == {"type": "string"}
    assert resolved(None, WHOLE) is None


def test_what_has_the_properties_of_a_whole_schema() -> None:
    node = {"type": "object", "properties": {"x": {}}}
    assert object_schema(node) == node
    assert object_schema({"$ref": "#/$defs/node", "$defs": {"node": node}}) == node
    assert object_schema(node | {"$ref": "#/$defs/none"})["properties"] == {"x": {}}
    assert object_schema({"$ref": "#/$defs/none"}) == {}
