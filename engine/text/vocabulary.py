"""Checks of tokenizers before a start: one by itself, and whether two have the same tokens."""

from pathlib import Path

from tokenizers import Tokenizer as Encoder

from engine.errors import InvalidConfig
from engine.text.chat_template import find_templates
from engine.text.settings import read_settings


def check_tokenizer(folder: Path) -> None:
    """Raises InvalidConfig."""
    if not (folder / "tokenizer.json").exists():
        raise InvalidConfig(f"{folder / 'tokenizer.json'} does not exist; set tokenizer to a folder that has one")
    find_templates(folder, read_settings(folder))


def check_same_tokens(folder: str, other: str) -> int:
    """How many ids the tokens have. Raises InvalidConfig unless each token has the same id in both
    tokenizers.
    """
    paths = [Path(each) / "tokenizer.json" for each in (folder, other)]
    ours = _ids(paths[0])
    theirs = ours if _bytes(paths[0]) == _bytes(paths[1]) else _ids(paths[1])
    if len(ours) != len(theirs):
        raise InvalidConfig(f"{paths[0]} has {len(ours)} tokens and {paths[1]} has {len(theirs)}")
    for token, token_id in ours.items():
        if theirs.get(token) != token_id:
            raise InvalidConfig(f"token {token!r} is {token_id} in {paths[0]} and {theirs.get(token)} in {paths[1]}")
    return max(ours.values(), default=-1) + 1


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None


def _ids(path: Path) -> dict[str, int]:
    try:
        return dict(Encoder.from_buffer(_bytes(path)).get_vocab(with_added_tokens=True))
    except InvalidConfig:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise InvalidConfig(f"{path} cannot be read: {error}") from None
