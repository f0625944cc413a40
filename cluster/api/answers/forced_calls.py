"""The grammar of an answer that consists of tool calls only."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cluster.api.answers import hermes, qwen3_coder
from cluster.api.answers.form import ToolFormat
from cluster.api.answers.schema_types import STRING, object_schema, property_schema, resolved, types_of

# As the models write it: white space of their own would be more to learn than to gain.
_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def call_grammar(tool_format: ToolFormat, tools: Sequence[Mapping[str, Any]], *, is_parallel: bool) -> str:
    """In Lark. `tools`: those that may be called, as the API has them."""
    make = _hermes_rules if tool_format == "hermes" else _coder_rules
    calls = 'call ("\\n" call)*' if is_parallel else "call"
    names = " | ".join(f"f{number}" for number in range(len(tools)))
    rules = [rule for number, tool in enumerate(tools) for rule in make(number, tool["function"])]
    return "\n".join([f"start: {calls}", f"call: {_text(_BEGIN)} ({names}) {_text(_END)}", *rules])


_BEGIN, _END = f"{hermes.BEGIN}\n", f"\n{hermes.END}"  # of both formats


def _hermes_rules(number: int, function: Mapping[str, Any]) -> Iterable[str]:
    head = f'{{"name": {json.dumps(function["name"])}, "arguments": '
    yield f"f{number}: {_text(head)} a{number} {_text('}')}"
    yield f"a{number}: {_json(_parameters(function))}"


def _coder_rules(number: int, function: Mapping[str, Any]) -> Iterable[str]:
    """Parameters in the order of the schema, those that are not required perhaps not there, and
    those that are and have no schema of their own behind them.
    """
    schema = _parameters(function)
    of_object = object_schema(schema)
    required = dict.fromkeys(of_object.get("required", ()))  # in their order
    names = list(dict.fromkeys([*of_object.get("properties", {}), *required]))
    parts = [f"p{number}_{place}{'' if name in required else '?'}" for place, name in enumerate(names)]
    head = f"{qwen3_coder.FUNCTION}{function['name']}>\n"
    yield f"f{number}: {' '.join([_text(head), *parts, _text(qwen3_coder.FUNCTION_END)])}"
    for place, name in enumerate(names):
        of_it = resolved(property_schema(of_object, name), schema)
        begin, end = _text(f"{qwen3_coder.PARAMETER}{name}>\n"), _text(f"\n{qwen3_coder.PARAMETER_END}\n")
        texts = _texts(of_it)
        if texts:
            yield f"p{number}_{place}: {begin} ({' | '.join(map(_text, texts))}) {end}"
        elif types_of(of_it, schema) == STRING:
            # Any text up to the mark, which a value cannot hold.
            yield f"p{number}_{place}: {begin} v{number}_{place}"
            yield f"v{number}_{place}[suffix={end}]: /(.|\\n)*/"
        else:
            yield f"p{number}_{place}: {begin} v{number}_{place} {end}"
            yield f"v{number}_{place}: {_json(_with_definitions(of_it, schema))}"


def _texts(schema: Any) -> list[str]:
    """The only values that a schema allows, if they are texts."""
    if not isinstance(schema, Mapping):
        return []
    values = [schema["const"]] if "const" in schema else schema.get("enum") or []
    return [value for value in values if isinstance(value, str)] if all(isinstance(v, str) for v in values) else []


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of its arguments, an object; without one there are none."""
    return {"type": "object", **(function.get("parameters") or {"additionalProperties": False})}


def _with_definitions(schema: Any, whole: Mapping[str, Any]) -> Any:
    """A part of a schema, with what its references lead to."""
    if not isinstance(schema, Mapping):
        return schema
    return {name: whole[name] for name in ("$defs", "definitions") if name in whole} | dict(schema)


def _json(schema: Any) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _JSON} if isinstance(schema, Mapping) else schema)}"


def _text(text: str) -> str:
    return json.dumps(text)
