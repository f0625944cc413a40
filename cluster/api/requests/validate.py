"""From a JSON object to a request, or to an error that says what is wrong and where."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from cluster.api.requests.fields import MAPPINGS, MAX_TIMEOUT, Hint, as_brief_json
from engine.errors import InvalidRequest

TIMEOUT_HEADER = "X-Request-Timeout"
MAX_NAMES = 8  # listed in a warning
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

_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")
_QUOTE = re.compile(r"(?<!\w)'|'(?!\w)")  # no apostrophe
_INSTANCE = re.compile(r"dictionary or instance of \w+")

Body = TypeVar("Body", bound=BaseModel)


def validate(model: type[Body], body: dict[str, Any]) -> Body:
    """The request in `body`; raises InvalidRequest."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False)[0]) from None


def timeout_of(headers: Mapping[str, str]) -> float | None:
    """Seconds for the answer, if the header says so; raises InvalidRequest."""
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    if not _SECONDS.fullmatch(text) or not 0 < float(text) <= MAX_TIMEOUT:
        raise InvalidRequest(
            f"{TIMEOUT_HEADER}: {as_brief_json(text)} is not a number of seconds above 0 and up to {MAX_TIMEOUT}",
            param=TIMEOUT_HEADER,
        )
    return float(text)


class Ignored(NamedTuple):
    """A field of a request that has no effect: an unknown one, or a `Hint`."""

    path: str
    message: str
    code: str = "unknown_parameter"


def ignored_fields(request: BaseModel, also_known: Iterable[str] = ()) -> tuple[Ignored, ...]:
    """Those that are not null: the first MAX_NAMES, and one more if there are more. `also_known`:
    names that may have been meant by an unknown one, beside the request's own fields.
    """
    return tuple(islice(_ignored_fields(request, "", also_known), MAX_NAMES + 1))


def _ignored_fields(request: BaseModel, prefix: str, also_known: Iterable[str] = ()) -> Iterator[Ignored]:
    known = type(request).model_fields
    for name, value in (request.model_extra or {}).items():
        if value is not None:
            path = prefix + name[:MAX_NAME]
            near = get_close_matches(name[:MAX_NAME], (*known, *also_known), n=1)
            meant = f"; did you mean '{prefix}{near[0]}'?" if near else ""
            yield Ignored(path, f"unknown field '{path}'{meant}")
    sent = request.model_fields_set
    for name, field in ((name, field) for name, field in known.items() if name in sent):
        value, path = getattr(request, name), f"{prefix}{field.alias or name}"
        for hint in field.metadata:
            if isinstance(hint, Hint) and hint.is_ignored(value):
                yield Ignored(path, f"'{path}' has no effect: {hint.why}", "unsupported_value")
        if isinstance(value, BaseModel):
            yield from _ignored_fields(value, f"{path}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):  # others may be texts
            for index, part in enumerate(value):
                if isinstance(part, BaseModel):
                    yield from _ignored_fields(part, f"{path}[{index}].")


def refuse_ignored(ignored: Sequence[Ignored]) -> None:
    """Raises InvalidRequest if there are any."""
    if ignored:
        raise InvalidRequest(ignored[0].message, param=ignored[0].path, code=ignored[0].code)


def warnings(ignored: Sequence[Ignored]) -> list[str]:
    """A sentence for each field that is ignored."""
    told = [f"ignored: {field.message}" for field in ignored[:MAX_NAMES]]
    return [*told, "ignored: more fields"] if len(ignored) > MAX_NAMES else told


def warning_header(ignored: Sequence[Ignored]) -> dict[str, str]:
    """The response header that names the ignored fields; nothing if there are none."""
    if not ignored:
        return {}
    listed = ", ".join(_printable(field.path) for field in ignored[:MAX_NAMES])
    return {"warning": f'299 squadron "ignored fields: {listed}{", ..." if len(ignored) > MAX_NAMES else ""}"'}


def _invalid(error: Mapping[str, Any]) -> InvalidRequest:
    path = _path(error["loc"])
    kind = error["type"]
    if kind == "missing":
        message = f"'{path}' is required"
    else:
        message = f"Invalid '{path}': {_in_json_words(error['msg'])}, got {as_brief_json(error['input'])}"
    if kind.endswith("_type"):
        code = "invalid_type"
    else:
        limits = error.get("ctx", {}).values()
        number = "decimal" if any(isinstance(limit, float) for limit in limits) else "integer"
        code = _CODES.get(kind, kind).format(kind=number)
    return InvalidRequest(message, param=path, code=code)


def _in_json_words(message: str) -> str:
    """pydantic's message about a Python value, in terms of the caller's JSON value."""
    message = _INSTANCE.sub("object", message)
    message = message.replace("valid dictionary", "valid object").replace("valid list", "valid array")
    return _QUOTE.sub('"', message)


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
    """Made safe for a header, since callers choose the names."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-[]") else "?" for letter in name)
