"""Forms of answers that a server must survive: schemas that take long, that are deep or wide, that
allow nothing, and any others.
"""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Body = dict[str, Any]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def hostile() -> Iterator[Body]:
    """The fields of a request that ask for one."""
    for schema in _schemas():
        yield {"guided_json": schema}
        yield {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
        tag = {"begin": "<a>", "schema": schema, "end": "</a>"}
        yield {"structured_outputs": {"structural_tag": {"triggers": ["<"], "structures": [tag]}}}
    for expression in ("(a{1,999}){1,999}", "(.*a){200}", "(a|aa)+" * 500, "[" * 5_000, "(?=a)a", "\\", "a{99999999}"):
        yield {"guided_regex": expression}
    yield {"guided_choice": [letter * 5_000 for letter in LETTERS]}
    yield {"guided_choice": [str(number) for number in range(30_000)]}
    for grammar in ("start: start", "start: a\na: b\nb: a", "(" * 5_000, 'root ::= "a" root', "start: /(.|\\n)*a/" * 9):
        yield {"guided_grammar": grammar}
    tags = [{"begin": f"<{number}>", "schema": {}, "end": "</"} for number in range(500)]
    yield {"response_format": {"type": "structural_tag", "triggers": ["<"], "structures": tags}}


def _schemas() -> Iterator[Any]:
    yield {"allOf": [{"type": "string", "pattern": f".*{letter}"} for letter in LETTERS]}
    yield {"type": "integer", "multipleOf": 999_999_937}
    yield {"type": "string", "minLength": 10_000_000}
    yield {"enum": list(range(15_000))}
    yield {"properties": {f"p{number}": {"type": "string"} for number in range(2_000)}, "type": "object"}
    yield {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    chain: dict[str, Any] = {f"a{number}": {"anyOf": [{"$ref": f"#/$defs/a{number + 1}"}] * 2} for number in range(40)}
    yield {"$defs": chain | {"a40": {"type": "null"}}, "$ref": "#/$defs/a0"}
    yield json.loads('{"items":' * 60 + "{}" + "}" * 60)
    yield json.loads('{"not":' * 200 + "{}" + "}" * 200)
    yield {"type": "array", "items": {"type": "array", "items": {}, "minItems": 10_000}, "minItems": 10_000}
    yield {"type": "number", "minimum": 1e308, "exclusiveMaximum": 1e-308}


_scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8)
_types = st.sampled_from(["string", "integer", "number", "object", "array", "boolean", "null", "strin"])


def _grown(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": _types | st.lists(_types, max_size=2),
        "properties": st.dictionaries(st.text(max_size=5), schemas, max_size=3),
        "items": schemas,
        "anyOf": st.lists(schemas, max_size=3),
        "allOf": st.lists(schemas, max_size=3),
        "enum": st.lists(_scalars, max_size=3),
        "const": _scalars,
        "pattern": st.text("ab.*+?()[]{}|^$\\0", max_size=12),
        "format": st.sampled_from(["date", "uuid", "email", "nonsense"]),
        "$ref": st.sampled_from(["#", "#/properties/a", "#/nowhere", "http://127.0.0.1/x"]),
        **dict.fromkeys(
            ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "multipleOf"), _scalars
        ),
        **dict.fromkeys(("required", "additionalProperties", "x-guidance"), _scalars | schemas),
    }
    names = st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True)
    return names.flatmap(lambda some: st.fixed_dictionaries({name: keywords[name] for name in some}))


schemas = st.recursive(st.booleans() | _scalars | st.just({}), _grown, max_leaves=8)
texts = st.text(max_size=30)
tags = st.fixed_dictionaries({}, optional={"begin": texts, "schema": schemas, "end": texts})
forms = st.one_of(
    st.builds(lambda schema: {"guided_json": schema}, schemas),
    st.builds(lambda text: {"guided_regex": text}, st.text("ab.*+?()[]{}|^$\\0", max_size=20)),
    st.builds(lambda text: {"guided_grammar": text}, st.text('start: root ::= | "a" [b] ( ) * + \n', max_size=60)),
    st.builds(lambda some: {"guided_choice": some}, st.lists(texts, max_size=4)),
    st.builds(
        lambda triggers, structures: {
            "response_format": {"type": "structural_tag", "triggers": triggers, "structures": structures}
        },
        st.lists(texts, max_size=2),
        st.lists(tags, max_size=2),
    ),
)
