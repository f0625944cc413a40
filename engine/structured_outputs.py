"""The form that an answer must have: JSON of a schema, one of some texts, a text of a grammar, or a
text with parts of a form.

Plain values, checked for what can be seen without compiling; `engine.grammars` compiles them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from engine.errors import InvalidRequest

Kind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_BYTES = 128 << 10  # of a schema, an expression, a grammar or all choices, as JSON
MAX_DEPTH = 64  # of a schema: objects and lists in one another
TOO_COMPLEX = "schema_too_complex"
INVALID_SCHEMA = "invalid_json_schema"


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """What is compiled, and cached, by `kind` and `text`."""

    kind: Kind
    text: str  # a grammar, an expression, or a schema, texts or tags as JSON; of json_object ""
    param: str = field(default="structured_outputs", compare=False)  # where the caller wrote it


def structured_outputs(asked: Any, param: str = "structured_outputs") -> StructuredOutputs | None:
    """From a mapping that has one of KINDS, as vLLM names them; None if it has none.

    Raises InvalidRequest, which names the field below `param`.
    """
    if not isinstance(asked, Mapping):
        raise _wrong_type("an object", asked, param)
    given = {name: value for name, value in asked.items() if value is not None and value is not False}
    unknown = [str(name) for name in given if name not in KINDS]
    if unknown:
        raise InvalidRequest(
            f"{param}.{unknown[0]:.40} is not supported: it takes one of {', '.join(KINDS)}",
            param=f"{param}.{unknown[0]:.40}",
            code="unsupported_parameter",
        )
    if len(given) > 1:
        raise InvalidRequest(f"{param} takes one of {', '.join(KINDS)}, got {' and '.join(given)}", param=param)
    return next((structured(name, value, f"{param}.{name}") for name, value in given.items()), None)


def structured(kind: Kind, value: Any, param: str) -> StructuredOutputs:
    """One kind by itself; raises InvalidRequest, which names `param`."""
    match kind:
        case "json":
            text = _schema(value, param)
        case "json_object":
            if value is not True:
                raise _wrong_type("true, or is left out", value, param)
            text = ""
        case "choice":
            text = _choices(value, param)
        case "regex" | "grammar":
            text = _text(value, param)
        case "structural_tag":
            text = _tags(value, param)
    if len(text) > MAX_BYTES:
        raise _too_long(len(text), param)
    return StructuredOutputs(kind, text, param)


def _schema(value: Any, param: str) -> str:
    """As JSON: an object, a boolean, or the text of one."""
    value = _parsed(value, param)
    if not isinstance(value, Mapping | bool):
        raise _wrong_type("a JSON schema, an object", value, param)
    return _as_json(value, param)


def _tags(value: Any, param: str) -> str:
    """Triggers and structures as JSON, from an object or the text of one, as vLLM takes them."""
    value = _parsed(value, param)
    if not isinstance(value, Mapping):
        raise _wrong_type("an object with triggers and structures", value, param)
    unknown = [name for name in value if name not in ("type", "triggers", "structures")]
    if unknown or value.get("type", "structural_tag") != "structural_tag":
        field = f"{param}.{unknown[0] if unknown else 'type':.40}"
        message = f"{field} is not supported: structural tags are triggers and structures"
        raise InvalidRequest(message, param=field, code="unsupported_parameter")
    triggers = json.loads(_choices(value.get("triggers"), f"{param}.triggers"))
    structures = value.get("structures")
    if not isinstance(structures, list | tuple):
        raise _wrong_type("a list of objects", structures, f"{param}.structures")
    if not structures:
        raise InvalidRequest(f"{param}.structures is empty", param=f"{param}.structures", code="empty_array")
    places = [f"{param}.structures[{number}]" for number in range(len(structures))]
    tags = [_tag(tag, triggers, place) for tag, place in zip(structures, places, strict=True)]
    return _as_json({"triggers": triggers, "structures": tags}, param)


def _tag(tag: Any, triggers: list[str], param: str) -> dict[str, Any]:
    """A part of the answer: its text before and after, and the schema between."""
    if not isinstance(tag, Mapping):
        raise _wrong_type("an object with begin, schema and end", tag, param)
    unknown = [name for name in tag if name not in ("begin", "schema", "end")]
    if unknown:
        field = f"{param}.{unknown[0]:.40}"
        raise InvalidRequest(f"{field} is not supported", param=field, code="unsupported_parameter")
    begin = _text(tag.get("begin"), f"{param}.begin")
    if not any(begin.startswith(trigger) for trigger in triggers):
        message = f"{param}.begin begins with none of the triggers: {begin!r:.80}"
        raise InvalidRequest(message, param=f"{param}.begin")
    end = tag.get("end")
    schema = {} if tag.get("schema") is None else json.loads(_schema(tag["schema"], f"{param}.schema"))
    return {"begin": begin, "schema": schema, "end": _text(end, f"{param}.end") if end else ""}


def _parsed(value: Any, param: str) -> Any:
    """A text of JSON is read; anything else stays as it is."""
    if not isinstance(value, str):
        return value
    if len(value) > MAX_BYTES:
        raise _too_long(len(value), param)
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param} is not JSON: {error}", param=param, code=INVALID_SCHEMA) from None


def _as_json(value: Any, param: str) -> str:
    _check_depth(value, param)
    try:
        return json.dumps(value, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{param} is not JSON: {error}", param=param, code=INVALID_SCHEMA) from None


def _check_depth(schema: Any, param: str) -> None:
    level, depth = [schema], 0
    while level := [value for value in level if isinstance(value, Mapping | list | tuple)]:
        depth += 1
        if depth > MAX_DEPTH:
            message = f"{param} has more than {MAX_DEPTH} objects and lists in one another"
            raise InvalidRequest(message, param=param, code=TOO_COMPLEX)
        level = [item for value in level for item in (value.values() if isinstance(value, Mapping) else value)]


def _choices(value: Any, param: str) -> str:
    if not isinstance(value, list | tuple) or not all(isinstance(choice, str) for choice in value):
        raise _wrong_type("a list of texts", value, param)
    if not value:
        raise InvalidRequest(f"{param} is empty: no answer would be right", param=param, code="empty_array")
    if not all(value):
        raise InvalidRequest(f"{param} holds an empty text", param=param, code="empty_string")
    length = sum(map(len, value))
    if length > MAX_BYTES:
        raise _too_long(length, param)
    for choice in value:
        _text(choice, param)
    return json.dumps(list(value), ensure_ascii=False)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise _wrong_type("a text", value, param)
    if not value:
        raise InvalidRequest(f"{param} is an empty text", param=param, code="empty_string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{param} holds half of a surrogate pair", param=param) from None
    return value


def _wrong_type(wanted: str, value: Any, param: str) -> InvalidRequest:
    return InvalidRequest(f"{param} is {wanted}, got {value!r:.80}", param=param, code="invalid_type")


def _too_long(length: int, param: str) -> InvalidRequest:
    message = f"{param} has {length} characters, at most {MAX_BYTES} are taken"
    return InvalidRequest(message, param=param, code=TOO_COMPLEX)
