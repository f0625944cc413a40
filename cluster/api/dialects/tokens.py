"""The bodies of POST /tokenize and /detokenize, and the prompt of the former."""

from typing import Annotated, Any

from pydantic import Field

from cluster.api.models.model import Model
from cluster.api.requests.chat.chat_call import chat_call
from cluster.api.requests.completions import completion_call
from cluster.api.requests.fields import MAX_MESSAGES, AtMost, Inert
from cluster.api.requests.protocol import Addressed, ChatRequest, CompletionRequest
from cluster.api.requests.sampling import check_vocabulary
from cluster.api.requests.validate import validate
from engine.errors import InvalidRequest
from engine.request import Request

MAX_IDS = 1 << 18
_OF_CHAT = (
    *("messages", "tools", "documents", "chat_template_kwargs"),
    *("add_generation_prompt", "continue_final_message", "reasoning_effort", "tool_choice"),
)


class TokenizeRequest(Addressed):
    """Either a prompt, as in completions, or messages, with what chat has for its template."""

    prompt: str | None = None
    messages: Annotated[list[Any], AtMost(MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None  # around a prompt; a template writes its own
    return_token_strs: bool | None = None
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    tool_choice: Any = None
    # Not supported.
    chat_template: Annotated[Any, Inert()] = None
    mm_processor_kwargs: Annotated[Any, Inert({})] = None


class DetokenizeRequest(Addressed):
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True), AtMost(MAX_IDS)]


def prompt_of(asked: TokenizeRequest, model: Model) -> Request:
    """A request with the prompt, which is checked as chat or completions check theirs; raises
    InvalidRequest.
    """
    if (asked.prompt is None) == (asked.messages is None):
        code = "missing_required_parameter" if asked.prompt is None else "invalid_value"
        raise InvalidRequest("There is to be either a prompt or messages", param="prompt", code=code)
    if asked.messages is not None:
        fields = {name: value for name in _OF_CHAT if (value := getattr(asked, name)) is not None}
        if asked.add_special_tokens is not None:
            fields["add_special_tokens"] = asked.add_special_tokens
        return chat_call(validate(ChatRequest, fields), model).requests[0]
    for name in _OF_CHAT:
        if getattr(asked, name) is not None:
            raise InvalidRequest(f"{name} is for messages, and there is a prompt", param=name)
    fields = {"prompt": asked.prompt, "add_special_tokens": asked.add_special_tokens}
    return completion_call(validate(CompletionRequest, fields), model).requests[0]


def checked_ids(asked: DetokenizeRequest, model: Model) -> list[int]:
    """Raises InvalidRequest."""
    check_vocabulary(asked.tokens, model.vocab_size, param="tokens")
    return asked.tokens
