"""A request's prompt, in any of its forms, as token ids."""

import time

from engine.request import Arrival, ChatPrompt, Prompt, Request
from engine.text.tokenizer import Tokenizer


def arrive(
    request: Request, tokenizer: Tokenizer, max_model_len: int, template_seconds: float | None = None
) -> Arrival:
    """Tokenize a request that has just arrived at the engine; raises InvalidRequest for a text of
    more tokens than the context has, InputProcessingError, TakesLong after `template_seconds`.
    """
    now = time.monotonic()
    token_ids = _token_ids(request, tokenizer, max_model_len, template_seconds)
    is_whole = request.max_prompt_tokens is None or len(token_ids) < request.max_prompt_tokens
    return Arrival(request, token_ids, _text(request.prompt, token_ids, tokenizer, is_whole=is_whole), now)


def _token_ids(request: Request, tokenizer: Tokenizer, max_model_len: int, template_seconds: float | None) -> list[int]:
    keep, special = request.max_prompt_tokens, request.add_special_tokens
    match request.prompt:
        case str() as text:
            return tokenizer.encode(text, max_model_len, keep=keep, add_special_tokens=special is not False)
        case ChatPrompt() as prompt:
            return tokenizer.encode_chat(
                prompt, max_model_len, keep=keep, add_special_tokens=bool(special), template_seconds=template_seconds
            )
        case token_ids:
            return token_ids[-keep:] if keep else list(token_ids)


def _text(prompt: Prompt, token_ids: list[int], tokenizer: Tokenizer, *, is_whole: bool) -> str | None:
    """A completion's prompt as text, as far as it is read, whichever way it was given; a
    conversation has none.
    """
    match prompt:
        case str() if is_whole:
            return prompt
        case ChatPrompt():
            return None
        case _:
            return tokenizer.decode(token_ids, skip_special_tokens=False)
