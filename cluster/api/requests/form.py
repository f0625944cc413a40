"""The format that a request asks of its answer, by any of its names."""

from typing import Any

from cluster.api.requests.protocol import JsonSchemaFormat, ResponseFormat, SamplingFields
from engine.errors import InvalidRequest
from engine.structured_outputs import KINDS, StructuredOutputs, structured, structured_outputs

PREFIX = "guided_"  # of the older names
_OLDER = [(kind, PREFIX + kind) for kind in KINDS if PREFIX + kind in SamplingFields.model_fields]


def wanted_form(request: SamplingFields) -> StructuredOutputs | None:
    """Raises InvalidRequest, which names the field, also if there are two that differ."""
    found = [_of_response_format(request.response_format)]
    if request.structured_outputs is not None:
        found.append(structured_outputs(request.structured_outputs))
    for kind, name in _OLDER:
        if (value := getattr(request, name)) is not None:
            found.append(structured(kind, value, name))
    forms = [form for form in found if form is not None]
    others = [form for form in forms if form != forms[0]]  # guidance's client sends one by both names
    if others:
        param = others[0].param
        raise InvalidRequest(f"{forms[0].param} and {param} are two forms of one answer", param=param)
    return forms[0] if forms else None


def _of_response_format(asked: ResponseFormat | None) -> StructuredOutputs | None:
    if asked is None:
        return None
    tags = _tags(asked)
    if asked.type != "structural_tag" and tags:
        raise _of_another_type(next(iter(tags)), "structural_tag", asked.type)
    if asked.type != "json_schema" and asked.json_schema is not None:
        raise _of_another_type("json_schema", "json_schema", asked.type)
    match asked.type, asked.json_schema:
        case "json_object", _:
            return structured("json_object", True, "response_format")
        case "json_schema", None:
            param = "response_format.json_schema"
            raise InvalidRequest(f"'{param}' is required", param=param, code="missing_required_parameter")
        case "json_schema", JsonSchemaFormat() as wanted:
            return structured("json", wanted.schema_, "response_format.json_schema.schema")
        case "structural_tag", _:
            return structured("structural_tag", tags, "response_format")
    return None


def _of_another_type(name: str, its: str, given: str) -> InvalidRequest:
    param = f"response_format.{name}"
    return InvalidRequest(f"{param} is for type {its}, and the type is {given}", param=param)


def _tags(asked: ResponseFormat) -> dict[str, Any]:
    """The fields of structural tags that are given."""
    names = ("triggers", "structures", "format")
    return {name: value for name in names if (value := getattr(asked, name)) is not None}
