"""The types that a parameter's JSON schema allows, for formats that write values without quotes."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

STRING = frozenset(["string"])
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_PYTHONS = {"True": "true", "False": "false", "None": "null"}
_PARTS = ("anyOf", "oneOf", "allOf")
_MAX_REFERENCES = 8  # from one to the next


def types_of(schema: Any, whole: Mapping[str, Any]) -> frozenset[str]:
    """JSON schema's names of types; only a string if nothing is known. `whole`: the schema in which
    references are looked up.
    """
    return frozenset(_allowed(schema, whole, set())) or STRING


def resolved(schema: Any, whole: Mapping[str, Any]) -> Any:
    """What a schema refers to, if it refers to something."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = whole
        for name in reference.removeprefix("#/").split("/"):
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema


def object_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a whole schema: what has the properties, perhaps a definition that it is one of, as that
    of an object which holds others of its kind.
    """
    found = schema if "properties" in schema else resolved(schema, schema)
    return found if isinstance(found, Mapping) else {}


def property_schema(of_object: Mapping[str, Any], name: str) -> Any:
    """Of a property, which may be one that its object's schema does not list; None: of any type."""
    properties = of_object.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return of_object.get("additionalProperties")


def object_forms(whole: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All that lists properties: the object's schema, and what it is one or all of."""
    forms: dict[int, Mapping[str, Any]] = {}  # by id: each is looked at once, since they may go in circles
    ahead: list[Any] = [object_schema(whole)]
    while ahead:
        schema = resolved(ahead.pop(), whole)
        if not isinstance(schema, Mapping) or id(schema) in forms:
            continue
        forms[id(schema)] = schema
        for key in _PARTS:
            parts = schema.get(key)
            ahead += parts if isinstance(parts, list) else []
    return list(forms.values())


def property_types(whole: Mapping[str, Any], name: str) -> frozenset[str]:
    """Of an object's property, by all of its forms that list it, or by what they say of others."""
    forms = object_forms(whole)
    listed = [form["properties"][name] for form in forms if name in (form.get("properties") or ())]
    return types_of({"anyOf": listed or [form.get("additionalProperties") for form in forms]}, whole)


def json_value(text: str, types: frozenset[str]) -> str:
    """The JSON text of a value that is one of the types; of a string with its text if it is none
    of them.
    """
    written = _PYTHONS.get(text.strip(), text.strip())
    try:
        value = json.loads(written, parse_constant=_refuse)
        shown = as_json(value) if isinstance(value, str) else written
    except (ValueError, RecursionError):
        return as_json(text)
    name = "null" if value is None else _NAMES[type(value)]
    return shown if name in types or (name == "integer" and "number" in types) else as_json(text)


def as_json(value: Any) -> str:
    """Raises ValueError for what JSON or UTF-8 cannot hold: a number that is not finite."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, allow_nan=False)
    return text


def _allowed(schema: Any, whole: Mapping[str, Any], seen: set[int]) -> set[str]:
    """`seen`: ids of schemas, of which each is looked at once: they may go in circles."""
    schema = resolved(schema, whole)
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return set()
    seen.add(id(schema))
    found: set[str] = set()
    match schema.get("type"):
        case str(name):
            found = {name}
        case list(names):
            found = {name for name in names if isinstance(name, str)}
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    values = [*values, *([schema["const"]] if "const" in schema else [])]
    if not found:
        found = {"null" if value is None else _NAMES.get(type(value), "object") for value in values}
    for key in _PARTS:
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else []:
            found |= _allowed(part, whole, seen)
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN is no JSON
