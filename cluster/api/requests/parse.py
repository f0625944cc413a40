"""From a request's raw body to a JSON object, strictly: anything that two parsers could read
differently is rejected.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from cluster.api.errors import ApiError

SMALL_BODY = 64 << 10  # bytes: parsed within milliseconds, whatever the contents
MAX_DEPTH = 128
# Parsing takes up to 30 times a body's size in memory, and holds the interpreter lock for a whole
# list, so these are counted before.
MAX_KEYS = 1 << 16  # of all objects together
MAX_CONTAINERS = 1 << 16  # lists and objects
MAX_VALUES = 1 << 20  # in all of them
_PIECE = 1 << 20  # bytes that are counted at once
MAX_INTEGER_BITS = 1024  # beyond it no double is close
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_object(body: bytes) -> dict[str, Any]:
    """The object whose JSON text is `body`; raises ApiError."""
    if not body:
        _refuse("The body is empty")
    _check_counts(body)
    try:
        value = (_AT_ONCE if len(body) <= SMALL_BODY else _IN_TURNS).decode(body.decode())
    except UnicodeDecodeError as error:
        _refuse(f"The body is not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        _refuse(f"The body is not JSON: {error.msg} at character {error.pos}")
    except RecursionError:
        _refuse_depth()
    except ValueError:
        _refuse("The body holds an integer with thousands of digits")
    if not isinstance(value, dict):
        _refuse("The body is JSON, but not an object")
    _check_values(value)
    return value


def digest_of(fields: dict[str, Any]) -> bytes:
    """SHA-256 of the object, whatever the order of its keys."""
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).digest()


def _check_counts(body: bytes) -> None:
    """Refuse too many keys or values. They are counted outside of strings: a text may hold any
    number of brackets.
    """
    num_keys = num_containers = num_commas = 0
    for piece in outside_strings(body):
        num_keys += piece.count(b":")
        num_containers += piece.count(b"[") + piece.count(b"{")
        num_commas += piece.count(b",")
    counts = (
        (num_keys, MAX_KEYS, "keys"),
        (num_containers, MAX_CONTAINERS, "lists and objects"),
        (num_commas + 1, MAX_VALUES, "values"),
    )
    for count, limit, what in counts:
        if count > limit:
            raise ApiError(400, f"The body has {count} {what}, at most {limit} are taken", code="request_too_large")


def outside_strings(body: bytes) -> Iterator[bytes]:
    """The body without its strings, piece by piece: other threads can run between two pieces. If
    the body is not JSON, this may be wrong after the first error, beyond which it is not parsed.
    """
    start, is_inside = 0, False
    while start < len(body):
        piece = body[start : start + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # ends in half of an escape
            piece = body[start : start + _PIECE + 1]
        start += len(piece)
        parts = piece.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        _refuse("An object in the body has a key twice")
    return made


def _integer(text: str) -> int:
    """A Python function that does what `int` does: other threads can run between its calls, which
    they could not between two numbers.
    """
    return int(text)


def _number(text: str) -> float:
    return float(text)


def _constant(name: str) -> NoReturn:
    _refuse(f"{name} is not JSON")


_HOOKS: dict[str, Any] = {"object_pairs_hook": _object, "parse_constant": _constant}
_AT_ONCE = json.JSONDecoder(**_HOOKS)
_IN_TURNS = json.JSONDecoder(**_HOOKS, parse_int=_integer, parse_float=_number)


def _check_values(value: Any) -> None:
    """Refuse numbers out of a double's range, text that is not Unicode, and depth; level by
    level.
    """
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            _refuse_depth()
        below: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                _check_items(list(container), below)
                container = container.values()
            _check_items(container, below)
        level = below


def _check_items(items: Any, below: list[Any]) -> None:
    for item in items:
        kind = type(item)
        if kind is dict or kind is list:
            below.append(item)
        elif kind is str:
            if not item.isascii() and _SURROGATE.search(item):
                _refuse("A string in the body has half of a surrogate pair")
        elif (kind is int and item.bit_length() > MAX_INTEGER_BITS) or (kind is float and math.isinf(item)):
            _refuse("A number in the body is too large")


def _refuse_depth() -> NoReturn:
    raise ApiError(400, f"The body is nested more than {MAX_DEPTH} levels deep", code="request_too_large")


def _refuse(message: str) -> NoReturn:
    raise ApiError(400, message, code="invalid_json")
