"""As much of pydantic as `engine` asks for, for machines that have none: fields and their defaults;
no value is checked.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self


class ValidationError(ValueError):
    """Nothing here raises it."""


@dataclass(frozen=True)
class FieldInfo:
    default: Any = ...  # that: there is none


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


def model_validator(**_when: object) -> Any:
    return lambda function: function


class BaseModel:
    model_fields: ClassVar[dict[str, FieldInfo]]

    def __init_subclass__(cls) -> None:
        given = {name: vars(cls).get(name, ...) for name in inspect.get_annotations(cls)}
        cls.model_fields = getattr(cls, "model_fields", {}) | {
            name: default if isinstance(default, FieldInfo) else FieldInfo(default) for name, default in given.items()
        }

    def __init__(self, **values: Any) -> None:
        fields = type(self).model_fields
        if unknown := values.keys() - fields.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        for name, field in fields.items():
            value = values.get(name, field.default)
            if value is ...:
                raise TypeError(f"{type(self).__name__} needs {name}")
            setattr(self, name, value)

    @classmethod
    def model_validate_json(cls, text: bytes) -> Self:
        return cls(**json.loads(text))

    def model_copy(self, *, update: dict[str, Any]) -> Self:
        return type(self)(**vars(self) | update)
