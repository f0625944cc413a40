"""Text to token ids and back to bytes: the checkpoint's tokenizer.json and chat template."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Encoder

from engine.errors import InputProcessingError, InvalidConfig, InvalidRequest

Message = Mapping[str, Any]


class Tokenizer:
    """A byte-level BPE tokenizer, as every Qwen2 has; read without transformers, whose import costs seconds.

    `token_bytes[id]` is what a token stands for: text is the bytes of all tokens joined, then decoded.
    """

    def __init__(self, folder: str) -> None:
        path = Path(folder)
        try:
            self._encoder = Encoder.from_file(str(path / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exceptions
            raise InvalidConfig(f"{path / 'tokenizer.json'} cannot be read: {error}") from None
        settings = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
        self._settings = settings
        self._template = _chat_template(path, settings)
        vocabulary = self._encoder.get_vocab(with_added_tokens=True)
        added = self._encoder.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._special_texts = [token.content for token in added.values() if token.special]
        self.token_bytes = [b""] * (max(vocabulary.values()) + 1)
        for token, token_id in vocabulary.items():
            self.token_bytes[token_id] = token.encode() if token_id in added else _byte_level(token)

    def encode(self, text: str) -> list[int]:
        """A prompt's token ids, with whatever the tokenizer puts around a text."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """A conversation's token ids, up to where the assistant answers."""
        return self._encode(self.render_chat(messages), add_special_tokens=False)

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The conversation in the checkpoint's chat template.

        Raises InvalidRequest with the template's own complaint, InputProcessingError if it trips over the messages.
        """
        if self._template is None:
            raise InvalidRequest("the model has no chat template; use completions", param="messages")
        for index, message in enumerate(messages):
            self._refuse_bare_special_tokens(index, message.get("content"))
        special = {key: _text(self._settings.get(key)) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **special)
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}", param="messages") from None
        except Exception as error:  # whatever a template does with what it did not expect is this request's own trouble
            raise InputProcessingError(f"the chat template failed: {type(error).__name__}: {error}") from error

    def encode_word(self, word: str) -> list[int]:
        """The token ids of a word as it stands, for bad_words."""
        return self._encode(word, add_special_tokens=False)

    def bytes_of(self, token_id: int) -> bytes:
        """What a token stands for; nothing, for ids beyond the tokenizer's that a model may have."""
        return self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """All of it as one text."""
        skipped = self.special_ids if skip_special_tokens else ()
        kept = (token_id for token_id in token_ids if token_id not in skipped)
        return b"".join(self.token_bytes[i] for i in kept if i < len(self.token_bytes)).decode(errors="replace")

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            ids: list[int] = self._encoder.encode(text, add_special_tokens=add_special_tokens).ids
        except Exception as error:  # whatever the library trips over is this request's own trouble
            raise InputProcessingError(f"the tokenizer failed: {error}") from error
        return ids

    def _refuse_bare_special_tokens(self, index: int, content: Any) -> None:
        if not isinstance(content, str) or not content:
            return
        rest = content
        for special in self._special_texts:
            rest = rest.replace(special, "")
        if not rest.strip() and rest != content:
            raise InvalidRequest(
                f"messages[{index}].content holds only special tokens", param=f"messages[{index}].content"
            )


def _chat_template(folder: Path, settings: dict[str, Any]) -> jinja2.Template | None:
    """From chat_template.jinja or tokenizer_config.json, in the environment that templates are written for."""
    path = folder / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.exists() else settings.get("chat_template")
    if not isinstance(source, str):
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(source)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _text(token: Any) -> str:
    """A special token in tokenizer_config.json is a string, an object with its content, or absent."""
    if isinstance(token, dict):
        return str(token["content"])
    return token or ""


def _byte_alphabet() -> dict[str, int]:
    """The printable characters by which byte-level BPE writes bytes (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        raise InvalidConfig(f"the tokenizer is not byte-level: token {token!r} stands for no bytes") from None
