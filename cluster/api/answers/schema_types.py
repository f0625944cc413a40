"""The types that a parameter's JSON schema allows, for formats that write values without quotes."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

STRING = frozenset(["string"])
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def types_of(schema: Any) -> frozenset[str]:
    """JSON schema's names of types; only a string if nothing is known."""
    return frozenset(_allowed(schema)) or STRING


def json_value(text: str, types: frozenset[str]) -> str:
    """The JSON text of a value that is one of the types; of a string with its text if it is none
    of them.
    """
    for written in (text.strip(), text.strip().lower()):  # Python's True and JSON's true
        try:
            value = json.loads(written, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        name = "null" if value is None else _NAMES[type(value)]
        if name in types or (name == "integer" and "number" in types):
            return written if name != "string" else json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def _allowed(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    found: set[str] = set()
    match schema.get("type"):
        case str(name):
            found = {name}
        case list(names):
            found = {name for name in names if isinstance(name, str)}
    for value in schema.get("enum") or [] if isinstance(schema.get("enum"), list) else []:
        found.add("null" if value is None else _NAMES.get(type(value), "object"))
    for key in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else []:
            found |= _allowed(part)
    return found or ({"object", "array", "string"} if "$ref" in schema else set())


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN is no JSON
