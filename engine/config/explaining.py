"""Keys and values that cannot be, in a sentence."""

import difflib
from typing import Any

from pydantic import ValidationError

# Keys of other servers that people bring, and what to do instead.
ABSENT = {
    "trust_remote_code": "code that a checkpoint brings is never run",
    "hf_overrides": "edit config.json in a copy of the folder",
    "rope_scaling": "write it into config.json, in a copy of the folder",
    "rope_theta": "write it into config.json, in a copy of the folder",
}

# Likewise values, by the ends of their keys: formats of checkpoints, which config.json names.
_PUBLISHED = ("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "auto-round")
_VALUES = {"quantization": dict.fromkeys(_PUBLISHED, "a checkpoint in this format is served without this option")}


def instead_of(name: str, value: Any) -> str | None:
    """What to do instead of giving a key this value of other servers'; None if it is none."""
    return _VALUES.get(name, {}).get(value) if isinstance(value, str) else None


def explain(error: ValidationError, known: list[str], secrets: tuple[str, ...] = ("api_key", "kv_peer_secret")) -> str:
    """A pydantic error in a sentence: path, value, and the nearest known key for an unknown one.
    Values whose path begins with one of `secrets` are not shown.
    """
    # A misspelt key first: it may be why another one is missing.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        if (why := ABSENT.get(str(first["loc"][-1]))) is not None:
            return f"unknown key {path!r}: {why}"
        near = difflib.get_close_matches(path, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown key {path!r}{hint}"
    if first["type"] == "missing":
        return f"{path} is required"
    message = first["msg"].removeprefix("Value error, ").replace("valid tuple", "valid list")  # as files write it
    if path.startswith(secrets) or not path:
        return f"{path}: {message}".removeprefix(": ")
    return f"{path}={first['input']!r}: {instead_of(str(first['loc'][-1]), first['input']) or message}"
