"""What form is asked for: read from mappings, refused by name."""

import pickle
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.sampling_params import SamplingParams
from engine.structured_outputs import MAX_BYTES, MAX_DEPTH, StructuredOutputs, structured_outputs


def nested(depth: int) -> Any:
    return {} if depth == 1 else {"not": nested(depth - 1)}


def tags(structures: list[Any], triggers: Any = ("<",)) -> dict[str, Any]:
    return {"structural_tag": {"triggers": triggers, "structures": structures}}


@pytest.mark.parametrize(
    ("asked", "kind", "text"),
    [
        ({"json": {"type": "object"}}, "json", '{"type": "object"}'),
        ({"json": ' {"enum": [1]}'}, "json", '{"enum": [1]}'),
        ({"json": True}, "json", "true"),
        ({"json_object": True, "regex": None}, "json_object", ""),
        ({"regex": "[a-z]+"}, "regex", "[a-z]+"),
        ({"choice": ("yes", "nö")}, "choice", '["yes", "nö"]'),
        ({"grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        (
            tags([{"begin": "<a", "schema": {"enum": [1]}, "end": ">"}, {"begin": "<b"}]),
            "structural_tag",
            '{"triggers": ["<"], "structures": [{"begin": "<a", "schema": {"enum": [1]}, "end": ">"}, '
            '{"begin": "<b", "schema": {}, "end": ""}]}',
        ),
        (
            {"structural_tag": '{"type": "structural_tag", "triggers": ["<"], "structures": [{"begin": "<"}]}'},
            "structural_tag",
            None,
        ),
        ({"json": nested(MAX_DEPTH)}, "json", None),
    ],
)
def test_one_form_is_asked_for(asked: dict[str, Any], kind: str, text: str | None) -> None:
    made = structured_outputs(asked)
    assert made is not None
    assert (made.kind, made.param) == (kind, f"structured_outputs.{kind}")
    assert text is None or made.text == text
    params = SamplingParams(structured_outputs=asked)  # type: ignore[arg-type]
    assert params.structured_outputs == made
    assert pickle.loads(pickle.dumps(params)) == params


def test_what_asks_for_nothing_is_nothing() -> None:
    assert structured_outputs({}) is None
    assert structured_outputs({"json_object": False, "regex": None}) is None


def test_the_same_form_is_equal_wherever_it_was_written() -> None:
    assert len({StructuredOutputs("regex", "a", "here"), StructuredOutputs("regex", "a", "there")}) == 1


@pytest.mark.parametrize(
    ("asked", "param", "code", "message"),
    [
        ("json", "structured_outputs", "invalid_type", "is an object, got 'json'"),
        ({"jsn": {}}, "structured_outputs.jsn", "unsupported_parameter", "takes one of json, json_object"),
        ({"structural_tag": "{"}, "structured_outputs.structural_tag", "invalid_json_schema", "is not JSON"),
        ({"structural_tag": 1}, "structured_outputs.structural_tag", "invalid_type", "triggers and structures"),
        (
            {"structural_tag": {"format": {}}},
            "structured_outputs.structural_tag.format",
            "unsupported_parameter",
            "is not supported",
        ),
        ({"structural_tag": {}}, "structured_outputs.structural_tag.triggers", "invalid_type", "a list of texts"),
        (tags([], triggers=[]), "structured_outputs.structural_tag.triggers", "empty_array", "is empty"),
        (tags([]), "structured_outputs.structural_tag.structures", "empty_array", "is empty"),
        (tags([1]), "structured_outputs.structural_tag.structures[0]", "invalid_type", "begin, schema and end"),
        (tags([{"begin": "x"}]), "structured_outputs.structural_tag.structures[0].begin", "invalid_value", "none of"),
        (
            tags([{"begin": "<", "ends": ""}]),
            "structured_outputs.structural_tag.structures[0].ends",
            "unsupported_parameter",
            "is not supported",
        ),
        (
            tags([{"begin": "<", "end": 1}]),
            "structured_outputs.structural_tag.structures[0].end",
            "invalid_type",
            "text",
        ),
        (
            tags([{"begin": "<", "schema": 1}]),
            "structured_outputs.structural_tag.structures[0].schema",
            "invalid_type",
            "a JSON schema",
        ),
        ({"json": {}, "regex": "a"}, "structured_outputs", "invalid_value", "got json and regex"),
        ({"json": 5}, "structured_outputs.json", "invalid_type", "a JSON schema"),
        ({"json": "{"}, "structured_outputs.json", "invalid_json_schema", "is not JSON"),
        ({"json": {"minimum": float("nan")}}, "structured_outputs.json", "invalid_json_schema", "not JSON compliant"),
        ({"json": nested(MAX_DEPTH + 1)}, "structured_outputs.json", "schema_too_complex", "more than 64"),
        ({"json": nested(900)}, "structured_outputs.json", "schema_too_complex", "more than 64"),
        ({"json": {"const": "x" * MAX_BYTES}}, "structured_outputs.json", "schema_too_complex", f"at most {MAX_BYTES}"),
        ({"json_object": 1}, "structured_outputs.json_object", "invalid_type", "is true"),
        ({"regex": ""}, "structured_outputs.regex", "empty_string", "empty"),
        ({"regex": 3}, "structured_outputs.regex", "invalid_type", "is a text, got 3"),
        ({"grammar": "\ud800"}, "structured_outputs.grammar", "invalid_value", "surrogate"),
        ({"choice": []}, "structured_outputs.choice", "empty_array", "no answer"),
        ({"choice": "yes"}, "structured_outputs.choice", "invalid_type", "list of texts"),
        ({"choice": ["a", 1]}, "structured_outputs.choice", "invalid_type", "list of texts"),
        ({"choice": ["a", ""]}, "structured_outputs.choice", "empty_string", "empty"),
        ({"choice": ["a" * 100] * 2000}, "structured_outputs.choice", "schema_too_complex", "200000"),
    ],
)
def test_what_cannot_be_one_is_refused_by_name(asked: Any, param: str, code: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        SamplingParams(structured_outputs=asked)
    assert (refused.value.param, refused.value.code) == (param, code)


def test_beams_with_a_form_are_refused() -> None:
    with pytest.raises(
        InvalidRequest, match=r"structured_outputs\.regex cannot be combined with beam search"
    ) as refused:
        SamplingParams(structured_outputs={"regex": "a"}, beam_width=2, temperature=0)  # type: ignore[arg-type]
    assert refused.value.param == "structured_outputs.regex"
