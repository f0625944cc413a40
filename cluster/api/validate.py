"""From a JSON object to a request, or to the one error that says what is wrong with it and where."""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from cluster.api.fields import MAPPINGS
from engine.errors import InvalidRequest

MAX_NAMES = 8  # that a warning lists
MAX_NAME = 64  # characters

_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "greater_than": "{kind}_below_min_value",
    "greater_than_equal": "{kind}_below_min_value",
    "less_than": "{kind}_above_max_value",
    "less_than_equal": "{kind}_above_max_value",
    "too_short": "empty_array",
    "too_long": "array_above_max_length",
    "string_too_short": "empty_string",
    "string_too_long": "string_above_max_length",
    "string_pattern_mismatch": "invalid_value",
    "literal_error": "unsupported_value",
    "finite_number": "invalid_value",
}

Body = TypeVar("Body", bound=BaseModel)


def validate(model: type[Body], body: dict[str, Any]) -> Body:
    """The request that `body` is; raises InvalidRequest."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False)[0]) from None


def ignored_fields(request: BaseModel, prefix: str = "") -> Iterator[str]:
    """The paths of the fields that were sent, and not null, and that nobody here knows."""
    for name, value in (request.model_extra or {}).items():
        if value is not None:
            yield prefix + name
    for name in type(request).model_fields:
        value = getattr(request, name)
        for index, part in enumerate(value if isinstance(value, list) else ()):
            if isinstance(part, BaseModel):
                yield from ignored_fields(part, f"{prefix}{name}[{index}].")


def warning(request: BaseModel) -> dict[str, str]:
    """The response header that names the ignored fields; nothing if there are none."""
    names = [_printable(name) for _, name in zip(range(MAX_NAMES + 1), ignored_fields(request), strict=False)]
    if not names:
        return {}
    listed = ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")
    return {"warning": f'299 squadron "ignored fields: {listed}"'}


def _invalid(error: Mapping[str, Any]) -> InvalidRequest:
    path = _path(error["loc"])
    kind = error["type"]
    if kind == "missing":
        message = f"'{path}' is required"
    else:
        message = f"Invalid '{path}': {error['msg']}, got {reprlib.repr(error['input'])}"
    if kind.endswith("_type"):
        code = "invalid_type"
    else:
        limits = error.get("ctx", {}).values()
        number = "decimal" if any(isinstance(limit, float) for limit in limits) else "integer"
        code = _CODES.get(kind, kind).format(kind=number)
    return InvalidRequest(message, param=path, code=code)


def _path(location: tuple[str | int, ...]) -> str:
    """`messages[0].content` of ("messages", 0, "content", "<text>")."""
    if location[0] in MAPPINGS:
        location = location[:1]
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part}" if path else part
    return path


def _printable(name: str) -> str:
    """Fit for a header: the names are the caller's."""
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-[]") else "?" for letter in name[:MAX_NAME]
    )
