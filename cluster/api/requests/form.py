"""The form that a request wants its answer to have, by any of the names for it."""

from cluster.api.requests.protocol import ResponseFormat, SamplingFields
from engine.errors import InvalidRequest
from engine.structured_outputs import KINDS, StructuredOutputs, structured, structured_outputs

PREFIX = "guided_"  # of the older names


def wanted_form(request: SamplingFields) -> StructuredOutputs | None:
    """Raises InvalidRequest, which names the field, also if there are two."""
    found = [_of_response_format(request.response_format)]
    if request.structured_outputs is not None:
        found.append(structured_outputs(request.structured_outputs))
    for kind in KINDS:
        if (value := getattr(request, PREFIX + kind, None)) is not None:
            found.append(structured(kind, value, PREFIX + kind))
    forms = [form for form in found if form is not None]
    if len(forms) > 1:
        param = forms[1].param
        raise InvalidRequest(f"{forms[0].param} and {param} are two forms of one answer", param=param)
    return forms[0] if forms else None


def _of_response_format(asked: ResponseFormat | None) -> StructuredOutputs | None:
    match asked:
        case ResponseFormat(type="json_object", json_schema=None):
            return structured("json_object", True, "response_format")
        case ResponseFormat(type="json_schema", json_schema=None):
            param = "response_format.json_schema"
            raise InvalidRequest(f"'{param}' is required", param=param, code="missing_required_parameter")
        case ResponseFormat(type="json_schema", json_schema=wanted) if wanted is not None:
            return structured("json", wanted.schema_, "response_format.json_schema.schema")
        case ResponseFormat(type=other, json_schema=wanted) if wanted is not None:
            param = "response_format.json_schema"
            raise InvalidRequest(f"{param} is for type json_schema, and the type is {other}", param=param)
    return None
