"""tokenizer_config.json: settings, and tokens beside the vocabulary."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from engine.errors import InvalidConfig


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, which may be missing; raises InvalidConfig, also for what is not
    supported.
    """
    path = folder / "tokenizer_config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidConfig(f"{path} is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise InvalidConfig(f"{path} holds {type(settings).__name__}, not an object")
    if code := settings.get("auto_map"):
        raise InvalidConfig(
            f"{path}: auto_map={code} names code that the checkpoint brings, which is never run; a copy without this "
            "field is read by its tokenizer.json alone"
        )
    for name in ("split_special_tokens", "add_prefix_space"):
        if settings.get(name):
            raise InvalidConfig(f"{path}: {name}=true is not supported; false is")
    return settings


def add_missing(encoder: Tokenizer, settings: dict[str, Any], where: str) -> None:
    """Tokens that only tokenizer_config.json lists, as transformers adds them. Raises
    InvalidConfig.
    """
    try:
        given = sorted(
            ((int(token_id), entry) for token_id, entry in (settings.get("added_tokens_decoder") or {}).items()),
            key=lambda pair: pair[0],
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidConfig(f"{where}: added_tokens_decoder is no object of tokens by id: {error}") from None
    for token_id, entry in given:
        content, flags = text_of(entry), entry if isinstance(entry, dict) else {}
        if encoder.token_to_id(content) is None:
            names = ("single_word", "lstrip", "rstrip", "normalized", "special")
            encoder.add_tokens([AddedToken(content, **{name: bool(flags.get(name)) for name in names})])
        if encoder.token_to_id(content) != token_id:
            raise InvalidConfig(
                f"{where}: added_tokens_decoder says that token {content!r} has id {token_id}, and by tokenizer.json "
                f"it has {encoder.token_to_id(content)}"
            )


def text_of(token: Any) -> str:
    """A special token in tokenizer_config.json is a string, or an object with its content."""
    return str(token.get("content", "") if isinstance(token, dict) else token)
