"""A request's fields for the chat template, besides its messages."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from cluster.api.requests.fields import AtMost, as_json, fail

MAX_VARIABLES = 64
MAX_DOCUMENTS = 1024
_NAME = re.compile("^[A-Za-z_][A-Za-z0-9_]{0,63}$")
# Each is a field of its own, or the server's.
_FIELDS = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template")
# Functions of the template's, and what Jinja itself gives to one.
_FUNCTIONS = ("range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception", "strftime_now")
_TAKEN = (*_FIELDS, *_FUNCTIONS, "self", "loop", "caller", "varargs", "kwargs", "super")


def _variables(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if name in _TAKEN:
            fail("invalid_value", f"{as_json([name])} cannot be set here")
        if not _NAME.fullmatch(name):
            fail("invalid_value", f"{as_json([name[:40]])} is no name of a variable")
    return value


TemplateVariables = Annotated[
    dict[str, Any],
    AtMost(MAX_VARIABLES),
    AfterValidator(_variables),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": _NAME.pattern, "not": {"enum": [*_TAKEN]}},
            "maxProperties": MAX_VARIABLES,
        }
    ),
]
Documents = Annotated[list[dict[str, Any]], AtMost(MAX_DOCUMENTS)]
