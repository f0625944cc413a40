"""Checks of tokenizers before a start: one by itself, and whether two have the same tokens."""

from pathlib import Path

from engine.errors import InvalidConfig
from engine.text.chat_template import find_templates
from engine.text.settings import read_encoder, read_settings


def check_tokenizer(folder: Path) -> None:
    """Raises InvalidConfig."""
    path = folder / "tokenizer.json"
    try:
        is_there = path.exists()
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None
    if not is_there:
        raise InvalidConfig(f"{path} does not exist; set tokenizer to a folder that has one")
    settings = read_settings(folder)
    find_templates(folder, settings)
    read_encoder(folder, settings)


def check_same_tokens(folder: str, other: str) -> int:
    """How many ids the tokens have. Raises InvalidConfig unless each token has the same id in both
    tokenizers.
    """
    ours, theirs = (_ids(Path(each)) for each in (folder, other))
    if len(ours) != len(theirs):
        raise InvalidConfig(f"the tokenizer of {folder} has {len(ours)} tokens and that of {other} has {len(theirs)}")
    for token, token_id in ours.items():
        if theirs.get(token) != token_id:
            raise InvalidConfig(f"token {token!r} is {token_id} in {folder} and {theirs.get(token)} in {other}")
    return max(ours.values(), default=-1) + 1


def _ids(folder: Path) -> dict[str, int]:
    return dict(read_encoder(folder, read_settings(folder)).get_vocab(with_added_tokens=True))
