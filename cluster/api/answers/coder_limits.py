"""What Qwen3-Coder's format of tool calls cannot say, of a tool's parameters."""

from collections.abc import Mapping
from typing import Any

from cluster.api.answers.schema_types import object_forms, object_schema

# They say more of an object than which properties it has; the grammar of a forced call does not.
_UNENFORCED = (
    *("anyOf", "oneOf", "allOf", "not", "if", "enum", "const"),
    *("minProperties", "maxProperties", "propertyNames", "patternProperties"),
    *("dependencies", "dependentRequired", "dependentSchemas"),
)


def unwritable(parameters: Mapping[str, Any]) -> str | None:
    """Why no call could be read that has them all; None if it can."""
    for form in object_forms(parameters):
        for name in (*form.get("properties", ()), *form.get("required", ())):
            if ">" in name or name != name.strip():
                return (
                    'A parameter\'s name has no ">" and no blanks around it, since the model writes <parameter=NAME>; '
                    f"'{name[:64]}' has"
                )
    return None


def unenforced(parameters: Mapping[str, Any]) -> str | None:
    """Why a forced call could have arguments that the schema does not allow; None if it cannot."""
    for schema in (parameters, object_schema(parameters)):
        for keyword in _UNENFORCED:
            if keyword in schema:
                return (
                    f"A call of this tool cannot be forced: in the model's format {keyword} is not enforced for the "
                    'parameters as a whole. Leave it out, or have tool_choice "auto"'
                )
    return None
