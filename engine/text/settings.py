"""tokenizer_config.json and older files beside it: settings, and tokens beside the vocabulary."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from engine.errors import InvalidConfig
from engine.text.text_limit import parts

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LFS_POINTER = b"version https://git-lfs"  # how a file begins that git has not fetched
_BY_ID = "added_tokens_decoder"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, which may be missing. As in transformers, special_tokens_map.json
    counts where it lists no tokens by id. Raises InvalidConfig, also for what is not supported.
    """
    where = folder / "tokenizer_config.json"
    settings = _object(where)
    if _BY_ID not in settings:
        settings |= _object(folder / "special_tokens_map.json")
    code = settings.get("auto_map")
    if isinstance(code, dict):
        code = code.get("AutoTokenizer")  # others are for what is not read here
    if code:
        raise InvalidConfig(
            f"{where}: auto_map={settings['auto_map']} names code that the checkpoint brings, which is never run; a "
            "copy without this field is read by its tokenizer.json alone"
        )
    if settings.get("split_special_tokens"):
        raise InvalidConfig(f"{where}: split_special_tokens=true is not supported; false is")
    return settings


def read_encoder(folder: Path, settings: dict[str, Any]) -> Tokenizer:
    """tokenizer.json, with the tokens that only the settings list, as transformers adds them: those
    with ids, then special ones without. Raises InvalidConfig.
    """
    path = folder / "tokenizer.json"
    try:
        encoder = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        is_pointer = path.is_file() and path.read_bytes().startswith(_LFS_POINTER)
        reason = "it is a Git LFS pointer; `git lfs pull` fetches the file" if is_pointer else error
        raise InvalidConfig(f"{path} cannot be read: {reason}") from None
    adds_space = any(part.get("add_prefix_space") for part in parts(encoder.pre_tokenizer))
    said = settings.get("add_prefix_space")
    if said not in (None, adds_space):
        raise InvalidConfig(
            f"{folder / 'tokenizer_config.json'}: add_prefix_space={json.dumps(said)} contradicts tokenizer.json, "
            f"whose pre_tokenizer adds {'one' if adds_space else 'none'}"
        )
    _add_listed(encoder, folder, settings)
    _add_special(encoder, settings)
    return encoder


def _add_listed(encoder: Tokenizer, folder: Path, settings: dict[str, Any]) -> None:
    """What tokenizer_config.json says of a token counts, whatever tokenizer.json says of it."""
    where, listed = _listed(folder, settings)
    known = _added(encoder)
    tokens = []
    for entry in listed.values():
        flags = entry if isinstance(entry, dict) else {}
        token = AddedToken(text_of(entry), **{name: bool(flags[name]) for name in _FLAGS if name in flags})
        # Also if the vocabulary has it, whose tokens are not found whole.
        if token.content not in known or (_BY_ID in settings and token != known[token.content]):
            tokens.append(token)
    encoder.add_tokens(tokens)  # at once: each call looks at all there are
    for token_id, entry in listed.items():
        if encoder.token_to_id(text_of(entry)) != token_id:
            raise InvalidConfig(
                f"{where} says that token {text_of(entry)!r} has id {token_id}, and by tokenizer.json it has "
                f"{encoder.token_to_id(text_of(entry))}"
            )


def _add_special(encoder: Tokenizer, settings: dict[str, Any]) -> None:
    """These have no flag but that, whatever the files say: so it is in transformers."""
    known = _added(encoder)
    tokens: dict[str, AddedToken] = {}
    for entry in (*_named(settings).values(), *_others(settings)):
        token = AddedToken(text_of(entry), special=True, normalized=False)
        if token.content and token != known.get(token.content):
            tokens[token.content] = token
    encoder.add_tokens(list(tokens.values()))


def _added(encoder: Tokenizer) -> dict[str, AddedToken]:
    return {token.content: token for token in encoder.get_added_tokens_decoder().values()}


def _listed(folder: Path, settings: dict[str, Any]) -> tuple[str, dict[int, Any]]:
    """Which file lists tokens with ids, and these by id, in order. Where tokenizer_config.json has
    none, it is added_tokens.json, as in transformers. Raises InvalidConfig.
    """
    found: dict[int, Any] = {}
    try:
        if _BY_ID in settings:
            where = f"{folder / 'tokenizer_config.json'}: {_BY_ID}"
            pairs = [(int(token_id), entry) for token_id, entry in (settings[_BY_ID] or {}).items()]
        else:
            where = str(folder / "added_tokens.json")
            special = {*named_tokens(settings).values(), *map(text_of, _others(settings))}
            pairs = [
                (int(token_id), {"content": text, "special": text in special, "normalized": text not in special})
                for text, token_id in _object(folder / "added_tokens.json").items()
            ]
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidConfig(f"{where} is no object of tokens and ids: {error}") from None
    for token_id, entry in sorted(pairs, key=lambda pair: pair[0]):
        if token_id in found:
            both = f"{text_of(found[token_id])!r} and {text_of(entry)!r}"
            raise InvalidConfig(f"{where} says that tokens {both} have one id, {token_id}")
        found[token_id] = entry
    return where, found


def named_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Special tokens by the names that chat templates have for them."""
    return {name: text_of(token) for name, token in _named(settings).items()}


def text_of(token: Any) -> str:
    """A special token in tokenizer_config.json is a string, or an object with its content."""
    return str(token.get("content", "") if isinstance(token, dict) else token)


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    """The usual ones first, then the model's own: keys such as image_token, or an object."""
    own = {name: token for name, token in settings.items() if name.endswith("_token")}
    for field in ("extra_special_tokens", "model_specific_special_tokens"):
        if isinstance(settings.get(field), dict):
            own |= settings[field]
    named = {name: own.pop(name, None) for name in SPECIAL_TOKENS} | own
    return {name: token for name, token in named.items() if isinstance(token, str | dict)}


def _others(settings: dict[str, Any]) -> list[Any]:
    """Special tokens without names; the second field is the older one, and counts where the first
    is an object: its tokens have names.
    """
    lists = (settings.get(field) for field in ("extra_special_tokens", "additional_special_tokens"))
    found = next((each for each in lists if each and isinstance(each, list)), [])
    return [token for token in found if isinstance(token, str | dict)]


def _object(path: Path) -> dict[str, Any]:
    """A file's contents; none if there is no such file. Raises InvalidConfig."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidConfig(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidConfig(f"{path} holds {type(found).__name__}, not an object")
    return found
