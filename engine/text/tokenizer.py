"""Text to token ids and back to bytes: the checkpoint's tokenizer.json and chat template."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.errors import InputProcessingError, InvalidConfig, InvalidRequest, context_exceeded
from engine.request import ChatPrompt
from engine.text.chat_template import DEFAULT, TOOL_USE, find_templates, template_names, tool_format
from engine.text.reasoning import BEGIN, END
from engine.text.settings import SPECIAL_TOKENS, named_tokens, read_encoder, read_settings
from engine.text.template_renderer import TemplateRenderer
from engine.text.text_limit import MAX_CONTEXTS_CUT, TextLimit, bytes_per_token

# The library would spread a batch over all cores, which the engine needs. It has no other switch.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizer:
    """A byte-level BPE tokenizer, as every Qwen2 has; read without transformers, whose import takes
    seconds. `token_bytes[id]` are a token's bytes: text is the bytes of all tokens joined, then
    decoded. `settings` is what others have to know who use the same: tokenizer_config.json, with
    special tokens as texts, and the chat templates in use by name, a single one as itself.
    """

    def __init__(self, folder: str) -> None:
        path = Path(folder)
        settings = read_settings(path)
        self._encoder = read_encoder(path, settings)
        self._encoder.no_truncation()  # prompts are never truncated: too long ones are rejected
        self._encoder.no_padding()
        templates = find_templates(path, settings)
        renderers = {name: TemplateRenderer(source) for name, source in templates.items()}
        self._renderer = renderers.get(DEFAULT)
        self._tool_renderer = renderers.get(TOOL_USE, self._renderer)
        self._template_names = template_names(path, settings)
        self.tool_format = tool_format(templates.get(TOOL_USE, templates.get(DEFAULT, "")))
        self._special = named_tokens(settings)
        self.settings = _as_told(settings, self._special, templates)
        vocabulary = self._encoder.get_vocab(with_added_tokens=True)
        added = self._encoder.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        added_ids = {token.content: token_id for token_id, token in added.items()}
        self.reasoning_ids = (added_ids[BEGIN], added_ids[END]) if {BEGIN, END} <= added_ids.keys() else None
        self._special_texts = [token.content for token in added.values() if token.special]
        self.token_bytes = [b""] * (max(vocabulary.values()) + 1)
        for token, token_id in vocabulary.items():
            self.token_bytes[token_id] = token.encode() if token_id in added else _byte_level(token)
        self._bytes_per_token = bytes_per_token(self._encoder, self.token_bytes)

    def start(self) -> None:
        """Start what the first conversation would otherwise have to wait for."""
        if self._renderer is not None:
            self._renderer.start()

    def text_limit(self, num_tokens: int) -> TextLimit | None:
        """The most bytes that a text of that many tokens may have; None if this tokenizer sets no
        such limit.
        """
        return None if self._bytes_per_token is None else TextLimit(num_tokens, self._bytes_per_token)

    def encode(
        self, text: str, max_tokens: int | None = None, *, keep: int | None = None, add_special_tokens: bool = True
    ) -> list[int]:
        """A prompt's token ids, with what the tokenizer adds around a text; with `keep` only the
        last so many. Raises InvalidRequest if there are more than `max_tokens` (with `keep`: more
        than MAX_CONTEXTS_CUT times as many), at once if the text has too many bytes.
        """
        return self._encode(text, max_tokens, "prompt", keep, add_special_tokens=add_special_tokens)

    def encode_chat(
        self,
        prompt: ChatPrompt,
        max_tokens: int | None = None,
        *,
        keep: int | None = None,
        add_special_tokens: bool = False,
        template_seconds: float | None = None,
    ) -> list[int]:
        """A conversation's token ids, up to the assistant's answer; `template_seconds` as for
        `render_chat`, the rest as for `encode`.
        """
        text = self.render_chat(prompt, template_seconds)
        return self._encode(text, max_tokens, "messages", keep, add_special_tokens=add_special_tokens)

    def render_chat(self, prompt: ChatPrompt, template_seconds: float | None = None) -> str:
        """The conversation in the checkpoint's chat template.

        Raises InvalidRequest with the template's own complaint, InputProcessingError if it fails on
        the messages, or takes too much time or memory; TakesLong after `template_seconds` of
        processor time, if any are given.
        """
        renderer = self._tool_renderer if prompt.tools else self._renderer
        if renderer is None:
            raise InvalidRequest(_no_template(self._template_names), param="messages")
        for index, message in enumerate(prompt.messages):
            self._refuse_bare_special_tokens(index, message.get("content"))
        variables = {**self._special, "add_generation_prompt": True, "tools": prompt.tools, "documents": None}
        variables |= prompt.variables  # last, as in transformers: a request may set a special token's name
        if not prompt.continues:
            return renderer.render(prompt.messages, variables, template_seconds)
        *before, last = prompt.messages
        marked = [*before, {**last, "content": last["content"] + _HERE}]
        return _up_to_mark(renderer.render(marked, variables, template_seconds), last["content"])

    def encode_word(self, word: str) -> list[int]:
        """The token ids of a word without anything around it, for bad_words."""
        return self._encode(word, None, "bad_words", add_special_tokens=False)

    def bytes_of(self, token_id: int) -> bytes:
        """A token's bytes; empty for ids beyond the tokenizer's, which a model may have."""
        return self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""

    def is_blank(self, token_id: int) -> bool:
        """Whether the token is nothing but spaces and line ends."""
        return not self.bytes_of(token_id).strip()

    def texts_of(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary writes it: bytes as printable characters."""
        return [self._encoder.id_to_token(token_id) or "" for token_id in token_ids]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """All of it as one text."""
        skipped = self.special_ids if skip_special_tokens else ()
        kept = (token_id for token_id in token_ids if token_id not in skipped)
        return b"".join(self.token_bytes[i] for i in kept if i < len(self.token_bytes)).decode(errors="replace")

    def _encode(
        self, text: str, max_tokens: int | None, param: str, keep: int | None = None, *, add_special_tokens: bool
    ) -> list[int]:
        limit = None if max_tokens is None else self.text_limit(max_tokens)
        if limit is not None:
            limit.check(text, param, is_cut=keep is not None)
        try:
            # `encode` would hold the interpreter lock; a batch of one does not.
            (encoding,) = self._encoder.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except Exception as error:  # any exception of the library is a failure of this request only
            raise InputProcessingError(f"the tokenizer failed: {error}") from error
        num_contexts = 1 if keep is None else MAX_CONTEXTS_CUT
        if (
            max_tokens is not None and len(encoding) > num_contexts * max_tokens
        ):  # before a list is made, which holds the lock
            most = "" if keep is None else f", which exceed {num_contexts} contexts of {max_tokens}"
            however = f"the prompt is too long: it has {len(encoding)} tokens{most}"
            raise context_exceeded(max_tokens, however, param=param)
        ids: list[int] = encoding.ids
        return ids if keep is None else ids[-keep:]

    def _refuse_bare_special_tokens(self, index: int, content: Any) -> None:
        if not isinstance(content, str) or not content.lstrip().startswith(tuple(self._special_texts)):
            return
        rest = content
        for special in self._special_texts:
            rest = rest.replace(special, "")
        if not rest.strip() and rest != content:
            raise InvalidRequest(
                f"messages[{index}].content holds only special tokens", param=f"messages[{index}].content"
            )


def _as_told(settings: dict[str, Any], special: dict[str, str], templates: dict[str, str]) -> dict[str, Any]:
    named = dict.fromkeys(SPECIAL_TOKENS) | special
    listed = [{"name": name, "template": source} for name, source in templates.items()]
    return settings | named | {"chat_template": templates.get(DEFAULT) if len(listed) < 2 else listed}


def _no_template(names: Sequence[str]) -> str:
    if not names:
        return "the model has no chat template; use completions"
    return (
        f"the model has no chat template named {DEFAULT}, only {', '.join(names)}; a copy of one of them as "
        "chat_template.jinja in the model's folder is used"
    )


# The end of a message that is to be continued; a template that trims messages trims the space.
_HERE = "CONTINUED FROM HERE "


def _up_to_mark(text: str, content: str) -> str:
    """The rendered conversation without what the template puts behind the last message, at whose
    end a mark was; `content`: of that message. As in transformers, a template that trims the mark
    trims the message.
    """
    shown, mark, behind = text.rpartition(_HERE.strip())
    if not mark or content.strip() not in shown:
        message = "the chat template changes the final message, which cannot be continued then"
        raise InvalidRequest(message, param="continue_final_message")
    is_trimmed = not behind.startswith(_HERE[len(mark) :])
    return shown.rstrip() if is_trimmed else shown


def _byte_alphabet() -> dict[str, int]:
    """The printable characters by which byte-level BPE writes bytes (GPT-2's
    `bytes_to_unicode`).
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        raise InvalidConfig(f"the tokenizer is not byte-level: token {token!r} stands for no bytes") from None
