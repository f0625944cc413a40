"""An answer as the type that a client's package has for it, and nothing else."""

from typing import Any

from pydantic import BaseModel, TypeAdapter


def parsed(kind: Any, sent: Any, *ours: str) -> Any:
    """`sent`, JSON, as a value of `kind`; fails if a field is missing, of another type, or neither
    of the type nor among `ours`.
    """
    value = TypeAdapter(kind).validate_python(sent)
    shown = TypeAdapter(kind).dump_python(value, mode="json", by_alias=True, exclude_unset=True)
    assert shown == sent
    assert extras(value) <= set(ours)
    return value


def extras(value: Any) -> set[str]:
    """Names of the fields in it that its types do not know."""
    match value:
        case BaseModel():
            inner = [getattr(value, name) for name in type(value).model_fields]
            return set(value.model_extra or ()).union(*map(extras, inner))
        case list():
            return set().union(*map(extras, value))
        case dict():
            return set().union(*map(extras, value.values()))
        case _:
            return set()
