"""A request's prompt, in any of its forms, as token ids."""

import time

from engine.request import Arrival, ChatPrompt, Prompt, Request
from engine.text.tokenizer import Tokenizer


def arrive(request: Request, tokenizer: Tokenizer, max_model_len: int) -> Arrival:
    """Tokenize a request that has just arrived at the engine; raises InvalidRequest for a text of
    more tokens than the context has, InputProcessingError.
    """
    now = time.monotonic()
    token_ids = _token_ids(request.prompt, tokenizer, max_model_len)
    return Arrival(request, token_ids, _text(request.prompt, token_ids, tokenizer), now)


def _token_ids(prompt: Prompt, tokenizer: Tokenizer, max_model_len: int) -> list[int]:
    match prompt:
        case str():
            return tokenizer.encode(prompt, max_model_len)
        case ChatPrompt():
            return tokenizer.encode_chat(prompt, max_model_len)
        case token_ids:
            return list(token_ids)


def _text(prompt: Prompt, token_ids: list[int], tokenizer: Tokenizer) -> str | None:
    """A completion's prompt as text, whichever way it was given; a conversation has none."""
    match prompt:
        case str():
            return prompt
        case ChatPrompt():
            return None
        case _:
            return tokenizer.decode(token_ids, skip_special_tokens=False)
