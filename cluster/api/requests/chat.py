"""From the body of POST /v1/chat/completions to a `Call`."""

from cluster.api.model import Model
from cluster.api.requests.call import Call, make_call
from cluster.api.requests.protocol import ChatRequest, Message
from cluster.api.requests.sampling import check_room, sampling_params
from engine.errors import InvalidRequest
from engine.request import ChatPrompt


def chat_call(request: ChatRequest, model: Model) -> Call:
    """Raises InvalidRequest."""
    max_tokens = _max_tokens(request)
    # A message is at least one token.
    check_room(None, len(request.messages), model, param="messages")
    limit_name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    check_room(max_tokens, len(request.messages), model, param=limit_name)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs is for logprobs: set logprobs to true", param="top_logprobs")
    params = sampling_params(
        request,
        model,
        max_tokens=max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
    )
    return make_call("chatcmpl", request, [chat_prompt(request.messages)], params)


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"max_tokens={old} and max_completion_tokens={new} are two names of one limit",
            param="max_completion_tokens",
        )
    return old if new is None else new


def chat_prompt(messages: list[Message]) -> ChatPrompt:
    """A conversation in the template's form."""
    return ChatPrompt([_message(message) for message in messages])


def _message(message: Message) -> dict[str, str]:
    """Content parts on separate lines; the role developer becomes system."""
    content = message.content if isinstance(message.content, str) else "\n".join(part.text for part in message.content)
    return {"role": "system" if message.role == "developer" else message.role, "content": content}
