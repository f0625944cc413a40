"""The kinds of value that request fields take, as pydantic types; an error's type is the code that the caller gets."""

from typing import Annotated, Any, Final, NoReturn

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_STOP_STRINGS = 4
MAX_TEXT = 1000  # characters of a stop string or a bad word
MAX_LOGIT_BIAS = 1024
MAX_PROMPTS = 1024
MAX_METADATA = 16


def only(*accepted: str | bool) -> AfterValidator:
    """A value that the API knows; only some of them can be had here."""

    def check(value: Any) -> Any:
        if value is not None and value not in accepted:
            shown = " or ".join(repr(choice) for choice in accepted)
            fail("unsupported_value", f"Only {shown} is supported")
        return value

    return AfterValidator(check)


def at_most(limit: int) -> BeforeValidator:
    """An object of that many keys: counted before they are looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > limit:
            fail("object_above_max_properties", f"At most {limit} keys are taken")
        return value

    return BeforeValidator(check)


def fail(code: str, message: str) -> NoReturn:
    raise PydanticCustomError(code, message.replace("{", "{{").replace("}", "}}"))


def _refuse(value: Any) -> None:
    if value is not None:
        fail("unsupported_parameter", "This is not supported; leave it out")


# A field that the API knows and that would change the answer: better refused than ignored.
Unsupported = Annotated[Any, AfterValidator(_refuse), WithJsonSchema({"type": "null"})]

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
_PromptIds = Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS, fail_fast=True)]
Prompts = Annotated[
    Annotated[str, Tag(TEXT)]
    | Annotated[_PromptTexts, Tag(TEXTS)]
    | Annotated[TokenIds, Tag(IDS)]
    | Annotated[_PromptIds, Tag(ID_LISTS)],
    Discriminator(_prompt_kind),
]

_DecimalKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
LogitBias = Annotated[dict[_DecimalKey, Annotated[float, Field(ge=-100, le=100)]], at_most(MAX_LOGIT_BIAS)]
_MetadataKey = Annotated[str, Field(max_length=64)]
Metadata = Annotated[dict[_MetadataKey, Annotated[str, Field(max_length=512)]], at_most(MAX_METADATA)]

# Standard and URL-safe base64 among others.
CacheSalt = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/_-][A-Za-z0-9+/_=.~:-]{0,255}$")]

MAPPINGS: Final = frozenset(["logit_bias", "metadata"])  # an error inside one is told as the field's own
