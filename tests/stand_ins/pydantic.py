"""As much of pydantic as `engine` asks for, for machines that have none: fields, their defaults,
models in fields, and what comes before all of these; no value is checked.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args


class ValidationError(ValueError):
    """Nothing here raises it."""


@dataclass(frozen=True)
class FieldInfo:
    default: Any = ...  # that: there is none
    model: "type[BaseModel] | None" = None  # that a dictionary becomes


def Field(default: Any = ..., *, default_factory: Callable[[], Any] | None = None, **_limits: object) -> Any:
    return FieldInfo(default_factory() if default_factory else default)


class BeforeValidator:
    """Of an annotation, which nobody here reads."""

    def __init__(self, function: object) -> None:
        self.function = function


class AfterValidator(BeforeValidator):
    pass


def ConfigDict(**options: object) -> dict[str, object]:
    return options


@dataclass(frozen=True)
class Before:
    """Changes what a model is made of."""

    method: Any  # a class method

    def __get__(self, _: object, model: type) -> Callable[[Any], Any]:
        changed: Callable[[Any], Any] = self.method.__get__(None, model)
        return changed


def model_validator(*, mode: Literal["before"]) -> type[Before]:
    return Before


class BaseModel:
    model_fields: ClassVar[dict[str, FieldInfo]]

    def __init_subclass__(cls) -> None:
        own = {}
        for name, annotation in inspect.get_annotations(cls).items():
            default = vars(cls).get(name, ...)
            kinds = [kind for kind in get_args(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
            default = default.default if isinstance(default, FieldInfo) else default
            own[name] = FieldInfo(default, *kinds)
        cls.model_fields = getattr(cls, "model_fields", {}) | own

    def __init__(self, **values: Any) -> None:
        for name, each in vars(type(self)).items():
            values = getattr(self, name)(values) if isinstance(each, Before) else values
        fields = type(self).model_fields
        if unknown := values.keys() - fields.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        for name, field in fields.items():
            value = values.get(name, field.default)
            if value is ...:
                raise TypeError(f"{type(self).__name__} needs {name}")
            setattr(self, name, field.model(**value) if field.model and isinstance(value, dict) else value)

    @classmethod
    def model_validate_json(cls, text: bytes) -> Self:
        return cls(**json.loads(text))

    def model_copy(self, *, update: dict[str, Any]) -> Self:
        return type(self)(**vars(self) | update)
