"""What the grammars of forced calls allow: the texts that the parsers take for calls."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from cluster.api.answers.forced_calls import call_grammar
from cluster.api.answers.form import Form, ToolFormat
from cluster.api.answers.parts import Arguments, CallBegun, Content, joined
from engine.grammars.byte_vocabulary import of_bytes
from engine.grammars.source import compiled, grammar_source

PLACE = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"]}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "at": {"$ref": "#/$defs/place"},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "at"],
    "additionalProperties": False,
    "$defs": {"place": PLACE | {"additionalProperties": False}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "at": {"x": 3}}}\n</tool_call>'
CODER = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nOs <b>\nlo\n</parameter>\n"
    '<parameter=at>\n{"x": 3}\n</parameter>\n</function>\n</tool_call>'
)

UNIT = "<parameter=unit>\n{}\n</parameter>\n"


def matcher(tool_format: ToolFormat, tools: list[Any], *, is_parallel: bool = True) -> Any:
    source = call_grammar(tool_format, tools, is_parallel=is_parallel)
    return compiled(grammar_source("grammar", source), of_bytes())


def allows(tool_format: ToolFormat, tools: list[Any], text: str, *, is_parallel: bool = True) -> bool:
    found = matcher(tool_format, tools, is_parallel=is_parallel)
    ids = list(text.encode())
    return found.validate_tokens(ids) == len(ids) and found.consume_tokens(ids) and found.is_accepting()


@pytest.mark.parametrize(
    ("tool_format", "text", "is_allowed"),
    [
        ("hermes", HERMES, True),
        ("hermes", f"{HERMES}\n{HERMES}", True),
        ("hermes", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', True),
        ("hermes", f"Well, {HERMES}", False),
        ("hermes", HERMES.replace("weather", "whether"), False),
        ("hermes", HERMES.replace("Oslo", "Reykjavik"), False),
        ("hermes", HERMES.replace(', "at": {"x": 3}', ""), False),
        ("hermes", HERMES.removesuffix("</tool_call>"), False),
        ("qwen3_coder", CODER, True),
        ("qwen3_coder", f"{CODER}\n{CODER}", True),
        ("qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", True),
        ("qwen3_coder", CODER.replace('{"x": 3}', "three"), False),
        ("qwen3_coder", CODER.replace("city", "town"), False),
        ("qwen3_coder", CODER.replace("</function>", UNIT.format("C") + "</function>"), True),
        ("qwen3_coder", CODER.replace("</function>", UNIT.format("Kelvin") + "</function>"), False),
    ],
)
def test_calls_and_nothing_else_are_allowed(tool_format: ToolFormat, text: str, is_allowed: bool) -> None:
    assert allows(tool_format, [WEATHER, NOW], text) == is_allowed


def test_one_call_of_one_tool() -> None:
    assert not allows("hermes", [NOW], HERMES)
    assert allows("hermes", [WEATHER], HERMES, is_parallel=False)
    assert not allows("hermes", [WEATHER], f"{HERMES}\n{HERMES}", is_parallel=False)


def test_the_properties_may_be_those_of_a_definition() -> None:
    """As pydantic writes the schema of an object that holds others of its kind."""
    whole = {"$defs": SCHEMA["$defs"] | {"weather": SCHEMA}, "$ref": "#/$defs/weather"}
    tool = {"type": "function", "function": {"name": "weather", "parameters": whole}}
    for tool_format, text in (("hermes", HERMES), ("qwen3_coder", CODER)):
        assert allows(tool_format, [tool], text)
        assert not allows(tool_format, [tool], text.replace('{"x": 3}', "three"))
        parser = Form(tool_format=tool_format, tools=[tool]).parser([])
        _, arguments = joined([*parser.add(text), *parser.end()])
        assert isinstance(arguments, Arguments) and json.loads(arguments.text)["at"] == {"x": 3}


@pytest.mark.parametrize(("others", "shown", "value"), [({}, "it's", "it's"), ({"type": "integer"}, "5", 5)])
def test_what_is_required_and_not_listed_is_there(others: dict[str, Any], shown: str, value: object) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["a"]}
    parameters = schema | {"additionalProperties": others}
    for each in (parameters, schema) if not others else (parameters,):
        tool = {"type": "function", "function": {"name": "f", "parameters": each}}
        text = "<tool_call>\n<function=f>\n{}</function>\n</tool_call>"
        told = f"<parameter=a>\n{shown}\n</parameter>\n"
        assert not allows("qwen3_coder", [tool], text.format(""))
        assert allows("qwen3_coder", [tool], text.format(told))
        assert allows("qwen3_coder", [tool], text.format("<parameter=b>\n1\n</parameter>\n" + told))
        parser = Form(tool_format="qwen3_coder", tools=[tool]).parser([])
        _, arguments = joined([*parser.add(text.format(told)), *parser.end()])
        assert isinstance(arguments, Arguments) and json.loads(arguments.text) == {"a": value}


@pytest.mark.parametrize("tool_format", ["hermes", "qwen3_coder"])
def test_whatever_is_sampled_is_a_call_with_valid_arguments(tool_format: ToolFormat) -> None:
    dice = random.Random(0)
    for _ in range(20):
        found = matcher(tool_format, [WEATHER, NOW], is_parallel=False)
        text = bytearray()
        while not found.is_stopped() and not found.is_accepting():
            mask = np.frombuffer(found.compute_bitmask(), np.uint8)
            allowed = [byte for byte in range(128) if mask[byte // 8] >> byte % 8 & 1]
            text.append(dice.choice(allowed))
            _, is_city, value = text.rpartition(b"=city>\n")
            if is_city and b"</parameter>" not in value and len(value) > 50:  # a long string: end it
                text[-1:] = b""
                ending = b"\n</parameter>\n"
                assert found.consume_tokens(list(ending))
                text += ending
                continue
            assert found.consume_token(text[-1])
        parser = Form(tool_format=tool_format, tools=[WEATHER, NOW]).parser([])
        call, arguments = joined([*parser.add(text.decode()), *parser.end()])
        assert isinstance(call, CallBegun) and isinstance(arguments, Arguments), (text, Content)
        schema = SCHEMA if call.name == "weather" else {"type": "object", "maxProperties": 0}
        if tool_format == "hermes":
            jsonschema.validate(json.loads(arguments.text), schema)
        else:
            assert set(json.loads(arguments.text)) <= {"city", "at", "unit"}
