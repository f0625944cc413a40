"""Files of API keys: one key a line, or a list in YAML or JSON with the limits of each. No error of
ours shows a key.
"""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.api.keys.key import Key, digest_of
from engine.config import explain, strict_yaml
from engine.errors import InvalidConfig

_STRUCTURED = (".yaml", ".yml", ".json")
_SECRETS = ("key", "sha256")
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]


class _Entry(BaseModel):
    """A key as the file has it; see `Key`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: _Name
    key: str | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-fA-F]{64}$")
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)
    max_concurrency: int | None = Field(None, ge=1)
    priority: int = Field(0, ge=0, lt=2**31)
    weight: float = Field(1.0, ge=0.001, le=1000)
    loads_adapters: bool = False
    controls_engines: bool = False
    cache_namespace: _Name | None = None

    @model_validator(mode="after")
    def _has_one_key(self) -> "_Entry":
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("has either key or sha256")
        if self.key is not None:
            check_key(self.key)
        return self

    def as_key(self) -> Key:
        digest = digest_of(self.key.encode()) if self.key is not None else bytes.fromhex(self.sha256 or "")
        return Key(digest=digest, **self.model_dump(exclude=set(_SECRETS)))


def read_key_file(file: str | Path) -> tuple[Key, ...]:
    """A name that ends in .yaml, .yml or .json: `keys: [{name: ..., key: ...}, ...]`. Otherwise one
    key a line, and comments after #; the keys are then called after their number. Raises
    InvalidConfig.
    """
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(f"api_key_file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfig(f"api_key_file {path} is not UTF-8") from None
    source = f"api_key_file {path}"
    keys = _structured(path, text) if path.suffix.lower() in _STRUCTURED else _plain(text, source)
    if not keys:
        raise InvalidConfig(f"{source} holds no key")
    return check_unique(keys, source)


def plain_key(key: str, name: str, source: str) -> Key:
    """Raises InvalidConfig."""
    try:
        check_key(key)
    except ValueError as error:
        raise InvalidConfig(f"{source} holds {error}") from None
    return Key(name, digest_of(key.encode()))


def check_key(key: str) -> None:
    """Raises ValueError."""
    if not key:
        raise ValueError("an empty API key: anybody could ask")
    if not key.isprintable() or " " in key:
        raise ValueError("an API key with a space or a control character")


def check_unique(keys: tuple[Key, ...], source: str) -> tuple[Key, ...]:
    """The keys; raises InvalidConfig if two have the same name, or are the same key."""
    names: set[str] = set()
    by_digest: dict[bytes, str] = {}
    for key in keys:
        if key.name in names:
            raise InvalidConfig(f"{source}: two keys are called {key.name!r}")
        if key.digest in by_digest:
            raise InvalidConfig(f"{source}: {by_digest[key.digest]!r} and {key.name!r} are the same key")
        names.add(key.name)
        by_digest[key.digest] = key.name
    return keys


def _plain(text: str, source: str) -> tuple[Key, ...]:
    lines = [line.strip() for line in text.splitlines()]
    found = dict.fromkeys(line for line in lines if line and not line.startswith("#"))
    return tuple(plain_key(key, f"file-{number}", source) for number, key in enumerate(found, 1))


def _structured(path: Path, text: str) -> tuple[Key, ...]:
    try:
        is_json = path.suffix.lower() == ".json"
        content = json.loads(text, object_pairs_hook=partial(_distinct, path)) if is_json else strict_yaml.load(text)
    except json.JSONDecodeError as error:
        raise InvalidConfig(f"api_key_file {path} is not JSON: line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise InvalidConfig(f"api_key_file {path} is nested too deeply") from None
    except strict_yaml.Twice as error:
        raise InvalidConfig(
            f"api_key_file {path}: line {error.problem_mark.line + 1}: a field is there twice"
        ) from None
    except strict_yaml.Problem as error:  # whose text quotes the line
        mark = getattr(error, "problem_mark", None)
        where = f": line {mark.line + 1}" if mark else ""
        raise InvalidConfig(f"api_key_file {path} is not YAML{where}") from None
    except ValueError:  # likewise: of a number with thousands of digits
        raise InvalidConfig(f"api_key_file {path} has a number that cannot be read") from None
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list) or len(content) > 1:
        raise InvalidConfig(f"api_key_file {path}: must be one list called 'keys'")
    return tuple(_read_entry(entry, index, path) for index, entry in enumerate(entries))


def _distinct(path: Path, fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Those of a JSON object; raises InvalidConfig."""
    found = dict(fields)
    if len(found) < len(fields):
        raise InvalidConfig(f"api_key_file {path}: a field is there twice")
    return found


def _read_entry(entry: Any, index: int, path: Path) -> Key:
    where = f"api_key_file {path}: keys[{index}]"
    if not isinstance(entry, dict):
        raise InvalidConfig(f"{where} must be a mapping with a name and a key")
    try:
        return _Entry.model_validate(entry).as_key()
    except ValidationError as error:
        name = entry.get("name")
        named = f" ({name})" if isinstance(name, str) and name.isprintable() else ""
        raise InvalidConfig(f"{where}{named}: {explain(error, list(_Entry.model_fields), _SECRETS)}") from None
