"""The fields of a quantization_config; errors name the field, its value and what is supported."""

from typing import Any

from parallel.errors import UnsupportedModel


class Fields:
    """Those of one object of config.json."""

    def __init__(self, fields: dict[str, Any], where: str = "quantization_config") -> None:
        self._fields = fields
        self._where = where

    def get(self, name: str) -> Any:
        return self._fields.get(name)

    def all(self) -> tuple[str, ...]:
        """The fields' names."""
        return tuple(self._fields)

    def check_known(self, read: str, without_influence: str = "") -> None:
        """Names of fields, with spaces between. Raises UnsupportedModel if another one asks for
        something: one of this name may change what is computed.
        """
        known = {*read.split(), *without_influence.split()}
        for name, value in self._fields.items():
            if name not in known and value:
                raise UnsupportedModel(
                    f"config.json: {self._where}.{name}={repr(value)[:200]} is not known here, and not computed"
                )

    def require(self, name: str, *values: Any, default: Any = None) -> None:
        """Raise UnsupportedModel unless the field has one of these values."""
        found = self._fields.get(name, default)
        if not any(type(found) is type(value) and found == value for value in values):
            raise self.refusal(name, found, " or ".join(repr(value) for value in values))

    def integer(self, name: str, default: int) -> int:
        value = self._fields.get(name, default)
        if type(value) is not int:
            raise self.refusal(name, value, "an integer")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self._fields.get(name, default)
        if not isinstance(value, bool):
            raise self.refusal(name, value, "true or false")
        return value

    def group_size(self, name: str, default: int | None) -> int | None:
        """None: one group, which is written as -1, or null where that is the default."""
        value = self._fields.get(name, default)
        if value == -1 or (value is None and default is None):
            return None
        if type(value) is not int or value < 16 or value % 8:
            raise self.refusal(name, value, "a multiple of 8 from 16 on, or -1")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        value = self._fields.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.refusal(name, value, "a list of names")
        return tuple(value)

    def inner(self, name: str) -> "Fields | None":
        """The object that a field is; None if it is not there."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refusal(name, value, "an object")
        return Fields(value, f"{self._where}.{name}")

    def refusal(self, name: str, value: Any, supported: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"config.json: {self._where}.{name}={repr(value)[:200]} is not supported; {supported} is"
        )
