"""The form of an answer, by every name that clients have for it."""

import json
from typing import Any

import pytest

from cluster.api.requests.form import wanted_form
from cluster.api.requests.protocol import ChatRequest, HandleRequest
from cluster.api.requests.validate import ignored_fields, validate
from engine.errors import InvalidRequest
from engine.structured_outputs import structured

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"enum": [1]}}}
WRAPPED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True, "description": "d"}}
OF_SCHEMA = structured("json", SCHEMA, "")
TAGS = {"type": "structural_tag", "triggers": ["<f"], "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}]}
OF_TAGS = structured("structural_tag", TAGS, "")


@pytest.mark.parametrize(
    ("body", "form", "param"),
    [
        ({}, None, None),
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": None, "structured_outputs": {}}, None, None),
        ({"response_format": {"type": "json_object"}}, structured("json_object", True, ""), "response_format"),
        ({"response_format": WRAPPED}, OF_SCHEMA, "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": SCHEMA}}, OF_SCHEMA, "structured_outputs.json"),
        ({"guided_json": SCHEMA}, OF_SCHEMA, "guided_json"),
        ({"guided_json": '{"enum": [1]}'}, structured("json", {"enum": [1]}, ""), "guided_json"),
        ({"guided_regex": "a+"}, structured("regex", "a+", ""), "guided_regex"),
        ({"guided_choice": ["a", "b"]}, structured("choice", ["a", "b"], ""), "guided_choice"),
        ({"guided_grammar": "start: A"}, structured("grammar", "start: A", ""), "guided_grammar"),
        ({"response_format": TAGS}, OF_TAGS, "response_format"),
        ({"structured_outputs": {"structural_tag": TAGS}}, OF_TAGS, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": json.dumps(TAGS)}}, OF_TAGS, "structured_outputs.structural_tag"),
    ],
)
def test_every_name_for_a_form(body: dict[str, Any], form: Any, param: str | None) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for asked in (validate(ChatRequest, chat | body), validate(HandleRequest, chat | body)):
        found = wanted_form(asked)
        assert found == form
        assert (found and found.param) == param


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
            "invalid_value",
        ),
        ({"response_format": WRAPPED | {"type": "text"}}, "response_format.json_schema", "invalid_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "grammar"}}, "response_format.type", "unsupported_parameter"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.triggers", "invalid_type"),
        ({"response_format": TAGS | {"structures": [5]}}, "response_format.structures[0]", "invalid_type"),
        ({"response_format": TAGS | {"format": {}}}, "response_format.format", "unsupported_parameter"),
        ({"response_format": TAGS | {"type": "json_object"}}, "response_format.triggers", "invalid_value"),
        (
            {"response_format": TAGS | {"json_schema": WRAPPED["json_schema"]}},
            "response_format.json_schema",
            "invalid_value",
        ),
        ({"response_format": WRAPPED, "guided_regex": "a"}, "guided_regex", "invalid_value"),
        ({"structured_outputs": {"regex": "a"}, "guided_choice": ["a"]}, "guided_choice", "invalid_value"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "invalid_json_schema"),
        ({"structured_outputs": {"json": 1}}, "structured_outputs.json", "invalid_type"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]", "invalid_type"),
        ({"guided_json": 1}, "guided_json", "invalid_type"),
    ],
)
def test_what_is_no_form_is_refused_by_name(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        wanted_form(validate(ChatRequest, {"messages": [{"role": "user", "content": "x"}]} | body))
    assert (refused.value.param, refused.value.code) == (param, code)


@pytest.mark.parametrize("name", ["guided_json_object", "guided_structural_tag"])
def test_a_field_that_is_told_to_be_ignored_is(name: str) -> None:
    body = validate(ChatRequest, {"messages": [{"role": "user", "content": "x"}], name: True})
    assert [field.path for field in ignored_fields(body)] == [name]
    assert wanted_form(body) is None
