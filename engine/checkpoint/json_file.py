"""The JSON files of a model's folder."""

import json
from pathlib import Path
from typing import Any

from engine.errors import InvalidConfig


def read_json(path: Path, kind: type = dict) -> Any:
    """What the file holds: an object, or (kind=list) a list. Raises InvalidConfig naming it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidConfig(f"{path} does not exist; a model is a folder in Hugging Face layout") from None
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also of numbers and nesting that Python does not read
        raise InvalidConfig(f"{path} is not JSON: {error}") from None
    if not isinstance(value, kind):
        expected = "an object" if kind is dict else "a list"
        raise InvalidConfig(f"{path} holds {type(value).__name__}, not {expected}")
    return value
