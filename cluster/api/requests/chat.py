"""From the body of POST /v1/chat/completions to a `Call`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cluster.api.answers.form import Form
from cluster.api.model import Model
from cluster.api.requests.call import Call, make_call
from cluster.api.requests.protocol import AnyMessage, CallMessage, ChatRequest, Message, TextPart, ToolMessage
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
    prompt = _prompt(request, model)
    return make_call("chatcmpl", request, [prompt], params, form=_form(request, prompt, model))


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"max_tokens={old} and max_completion_tokens={new} are two names of one limit",
            param="max_completion_tokens",
        )
    return old if new is None else new


def chat_prompt(messages: Sequence[AnyMessage]) -> ChatPrompt:
    """A conversation in the template's form."""
    return ChatPrompt([_message(message) for message in messages])


def _prompt(request: ChatRequest, model: Model) -> ChatPrompt:
    """The conversation with all that the request has for the template; raises InvalidRequest."""
    tools = None
    if request.tools and request.tool_choice != "none":
        if model.tool_format is None:
            raise InvalidRequest(
                "The model has no tools: its chat template does not mention them",
                param="tools",
                code="unsupported_parameter",
            )
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools]
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
        if request.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
    if request.documents:
        variables["documents"] = request.documents
    continues = _continues(request)
    if continues or request.add_generation_prompt is False:
        variables["add_generation_prompt"] = False
    prompt = chat_prompt(request.messages)
    return replace(prompt, tools=tools, variables=variables, continues=continues)


def _continues(request: ChatRequest) -> bool:
    if not request.continue_final_message:
        return False
    param = "continue_final_message"
    if request.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other: set the latter to false"
        raise InvalidRequest(message, param=param)
    last = request.messages[-1]
    if not isinstance(last, Message) or last.role != "assistant" or not _text(last.content).strip():
        raise InvalidRequest("The final message, which is to be continued, is no assistant's with a text", param=param)
    return True


def _form(request: ChatRequest, prompt: ChatPrompt, model: Model) -> Form:
    return Form(
        tool_format=None if prompt.tools is None else model.tool_format,
        tools=prompt.tools or (),
        is_parallel=request.parallel_tool_calls is not False,
        reasoning_ids=None if request.separate_reasoning is False else model.reasoning_ids,
        shows_reasoning=request.include_reasoning is not False,
    )


def _message(message: AnyMessage) -> dict[str, Any]:
    """The role developer becomes system."""
    made: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    made["content"] = "" if message.content is None else _text(message.content)
    if isinstance(message, CallMessage):
        made["tool_calls"] = [call.as_value() for call in message.tool_calls]
    if isinstance(message, ToolMessage):
        made["tool_call_id"] = message.tool_call_id
    elif reasoning := message.reasoning_content or message.reasoning:
        made["reasoning_content"] = reasoning
    return made


def _text(content: str | list[TextPart]) -> str:
    """Content parts on separate lines."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
