"""Renames errors about a chat's fields to the fields of the other API that these were made of."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine.errors import InvalidRequest

# Of a field's path: a pattern, and what it is in the other API; the first that matches counts.
Names = Sequence[tuple[str, str]]


@contextmanager
def named(names: Names) -> Iterator[None]:
    """An InvalidRequest raised in here names the field of the other API."""
    try:
        yield
    except InvalidRequest as error:
        raise in_words_of(names, error) from None


def in_words_of(names: Names, error: InvalidRequest) -> InvalidRequest:
    """The error, with the other API's name of the field wherever it is named."""
    for pattern, name in names:
        if error.param is not None and re.fullmatch(pattern, error.param):
            param = re.sub(pattern, name, error.param)
            return InvalidRequest(error.message.replace(error.param, param), param=param, code=error.code)
    return error
