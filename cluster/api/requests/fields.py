"""Types of request fields, for pydantic; an error's type is the code that the caller gets."""

import json
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, Final, NoReturn

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from engine.sampling_params import MAX_STOP_STRINGS

MAX_TEXT = 1000  # characters of a stop string or a bad word
MAX_LOGIT_BIAS = 1024
MAX_PROMPTS = 1024
MAX_INPUTS = 2048  # texts of a request for embeddings
MAX_METADATA = 16
MAX_MESSAGES = 8192
MAX_PARTS = 8192  # of a message
MAX_TIMEOUT = 86_400  # seconds
MAX_SHOWN = 40  # characters of a value that an error quotes
MAX_SHOWN_ITEMS = 4


class Only:
    """A field of the API of which only some values are supported here; null means omitted."""

    def __init__(self, *values: str | bool) -> None:
        self._values = values

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [None, *self._values]}

    def _check(self, value: Any) -> Any:
        if value is not None and value not in self._values:
            fail("unsupported_value", f"Only {as_json(self._values)} is supported")
        return value


class AtMost:
    """Limits an object's keys or a list's items, which are counted before they are validated."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        described = handler(schema)
        return described | {"maxProperties" if described["type"] == "object" else "maxItems": self._limit}

    def _check(self, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > self._limit:
            fail("object_above_max_properties", f"{len(value)} keys were sent, at most {self._limit} are taken")
        if isinstance(value, list) and len(value) > self._limit:
            fail("array_above_max_length", f"{len(value)} items were sent, at most {self._limit} are taken")
        return value


class Inert:
    """A field of the API that is not supported: null and `values`, which request nothing, are
    accepted. A value that would change the answer is rejected rather than ignored.
    """

    def __init__(self, *values: Any, why: str = "This is not supported") -> None:
        """`why`: the reason that a caller is told."""
        self._values = values
        self._why = why

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [None, *self._values]} if self._values else {"type": "null"}

    def _check(self, value: Any) -> Any:
        for known in (None, *self._values):
            if value == known and isinstance(value, bool) == isinstance(known, bool):
                return value
        taken = f"; {as_json(self._values)} would be taken" if self._values else ""
        fail("unsupported_parameter", f"{self._why}: leave it out{taken}")


class Hint:
    """A field that a client may set without harm, though it has no effect here. With other values
    than null and `values`, which ask for nothing, it is among the request's ignored fields.
    """

    def __init__(self, *values: Any, why: str) -> None:
        """`why`: the reason that a caller is told."""
        self._values = values
        self.why = why

    def is_ignored(self, value: Any) -> bool:
        """A valid value."""
        return value is not None and value not in self._values


def as_json(values: Iterable[Any]) -> str:
    """`true or "auto"`, in the caller's notation."""
    return " or ".join(json.dumps(value, ensure_ascii=False) for value in values)


def as_brief_json(value: Any) -> str:
    """A caller's value as JSON, or its beginning."""
    return json.dumps(_brief(value, depth=2), ensure_ascii=False)


def _brief(value: Any, depth: int) -> Any:
    match value:
        case str():
            return value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}…"
        case list() | dict() if depth == 0 and value:
            return "…"
        case list():
            items = [_brief(item, depth - 1) for item in value[:MAX_SHOWN_ITEMS]]
            return [*items, "…"] if len(value) > MAX_SHOWN_ITEMS else items
        case dict():
            fields = {_brief(key, 0): _brief(item, depth - 1) for key, item in islice(value.items(), MAX_SHOWN_ITEMS)}
            return fields | {"…": "…"} if len(value) > MAX_SHOWN_ITEMS else fields
        case int() if abs(value) >= 10**MAX_SHOWN:
            return f"{str(value)[:MAX_SHOWN]}…"
    return value


def fail(code: str, message: str) -> NoReturn:
    raise PydanticCustomError(code, message)


# A tag in angle brackets: part of an error's location, but not of the caller's path.
TEXT, TEXTS, IDS, ID_LISTS, PARTS = "<text>", "<texts>", "<ids>", "<id lists>", "<parts>"


def _stop_kind(value: Any) -> str:
    return TEXTS if isinstance(value, list) else TEXT


def _prompt_kind(value: Any) -> str:
    if not isinstance(value, list):
        return TEXT
    first = value[0] if value else None
    if isinstance(first, list):
        return ID_LISTS
    return IDS if isinstance(first, int) else TEXTS


_Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Texts = Annotated[list[_Text], Field(fail_fast=True)]
Stop = Annotated[
    Annotated[_Text, Tag(TEXT)] | Annotated[list[_Text], Field(max_length=MAX_STOP_STRINGS), Tag(TEXTS)],
    Discriminator(_stop_kind),
]

TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, fail_fast=True)]
_PromptTexts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
_PromptIds = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
Prompts = Annotated[
    Annotated[str, Tag(TEXT)]
    | Annotated[_PromptTexts, Tag(TEXTS)]
    | Annotated[TokenIds, Tag(IDS)]
    | Annotated[_PromptIds, Tag(ID_LISTS)],
    Discriminator(_prompt_kind),
]

_Input = Annotated[str, Field(min_length=1)]
Inputs = Annotated[
    Annotated[_Input, Tag(TEXT)]
    | Annotated[list[_Input], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag(TEXTS)]
    | Annotated[TokenIds, Tag(IDS)]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag(ID_LISTS)],
    Discriminator(_prompt_kind),
]

OneOrMoreTexts = Annotated[
    Annotated[_Input, Tag(TEXT)] | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS), Tag(TEXTS)],
    Discriminator(_stop_kind),
]

OnePrompt = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[TokenIds, Tag(IDS)],
    Discriminator(lambda value: IDS if isinstance(value, list) else TEXT),
]


def _is_no_zero(value: int) -> int:
    if value == 0:
        fail("integer_below_min_value", "A prompt has at least 1 token; -1 stands for all that fit")
    return value


# -1: as many as fit.
NumKept = Annotated[
    int,
    Field(ge=-1, lt=2**31),
    AfterValidator(_is_no_zero),
    WithJsonSchema({"type": "integer", "minimum": -1, "maximum": 2**31 - 1, "not": {"const": 0}}),
]
Priority = Annotated[int, Field(ge=0, lt=2**31)]  # lower goes first: no request can precede the default

_DecimalKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]
LogitBias = Annotated[
    dict[_DecimalKey, _Bias], Field(json_schema_extra={"additionalProperties": False}), AtMost(MAX_LOGIT_BIAS)
]
_MetadataKey = Annotated[str, Field(max_length=64)]
Metadata = Annotated[dict[_MetadataKey, Annotated[str, Field(max_length=512)]], AtMost(MAX_METADATA)]

# Standard and URL-safe base64 among others.
CacheSalt = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/_-][A-Za-z0-9+/_=.~:-]{0,255}$")]

# OpenAI's, without effect on the answer.
ServiceTier = Annotated[
    str | None,
    Only("auto", "default", "flex", "scale", "priority", "fast"),
    Hint("auto", "default", why="There is one tier; priority orders requests"),
]
Verbosity = Annotated[
    str | None,
    Only("low", "medium", "high"),
    Hint("medium", why="Chat templates do not know it; ask for it in a message"),
]

MAPPINGS: Final = frozenset(["logit_bias", "metadata"])  # an error inside one is reported for the field
