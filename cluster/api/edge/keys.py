"""API keys: from options, from a file, or from the environment. No message of ours shows one."""

import os
from collections.abc import Iterable
from pathlib import Path

from engine.errors import InvalidConfig

API_KEY_VARIABLE = "SQUADRON_API_KEY"


def read_api_keys(given: Iterable[str] = (), file: str | None = None) -> tuple[str, ...]:
    """The keys given and those of `file`; if there are none, the one of SQUADRON_API_KEY; raises
    InvalidConfig.

    For servers, which accept any of them, and for clients, which send the first. An empty variable
    is rejected: it would open a server that was meant to need a key.
    """
    keys = collect_api_keys(given, file)
    if not keys and (key := os.environ.get(API_KEY_VARIABLE)) is not None:
        return collect_api_keys([key], source=API_KEY_VARIABLE)
    return keys


def collect_api_keys(
    given: Iterable[str], file: str | None = None, *, source: str = "the configuration"
) -> tuple[str, ...]:
    """The keys given and those of `file`, which has one per line and comments after #; raises
    InvalidConfig.
    """
    keys = [_checked(key, source) for key in given]
    return (*keys, *(_read(file) if file is not None else ()))


def _read(file: str) -> list[str]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(f"api_key_file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfig(f"api_key_file {file} is not UTF-8") from None
    lines = [line.strip() for line in text.splitlines()]
    keys = [_checked(line, f"api_key_file {file}") for line in lines if line and not line.startswith("#")]
    if not keys:
        raise InvalidConfig(f"api_key_file {file} holds no key")
    return keys


def _checked(key: str, source: str) -> str:
    if not key:
        raise InvalidConfig(f"{source} holds an empty API key: anybody could ask")
    if not key.isprintable() or " " in key:
        raise InvalidConfig(f"{source} holds an API key with a space or a control character")
    return key
