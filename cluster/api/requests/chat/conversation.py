"""A request's conversation, with the fields for the chat template."""

from collections.abc import Sequence
from typing import Any

from cluster.api.answers.coder_limits import unwritable
from cluster.api.models.model import Model
from cluster.api.requests.chat.tools import AllowedTools, chosen, refuse_parameters
from cluster.api.requests.protocol import AnyMessage, CallMessage, ConversationFields, Message, ToolMessage
from engine.errors import InvalidRequest
from engine.request import ChatPrompt


def conversation(
    request: ConversationFields, messages: Sequence[AnyMessage], model: Model, *, reasons: bool
) -> ChatPrompt:
    """The conversation with all that the request has for the template; raises InvalidRequest.

    `reasons`: the answer may begin with reasoning. It may not if it has to have a form, which is
    that of the whole text.
    """
    tools, choice = None, request.tool_choice
    if request.tools and choice != "none":
        if model.tool_format is None:
            raise InvalidRequest(
                "The model has no tools: its chat template shows calls in none of the forms that are read, which are "
                "hermes (<tool_call>) and qwen3_coder (<function=)",
                param="tools",
                code="unsupported_parameter",
            )
        asked = chosen(request.tools, choice) if isinstance(choice, AllowedTools) else request.tools
        if model.tool_format == "qwen3_coder":
            refuse_parameters(request.tools, asked, unwritable)
        tools = [tool.model_dump(exclude_none=True) for tool in asked]
    elif isinstance(choice, AllowedTools) or (request.tools is None and choice not in (None, "none", "auto")):
        raise InvalidRequest("tool_choice is for tools, and there are none", param="tool_choice")
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
        if request.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
    if not reasons and model.reasoning_ids is not None:
        variables.setdefault("enable_thinking", False)
    if request.documents:
        variables["documents"] = request.documents
    continues = _continues(request, messages[-1])
    if continues or request.add_generation_prompt is False:
        variables["add_generation_prompt"] = False
    made = [_message(message) for message in messages]
    return ChatPrompt(made, tools=tools, variables=variables, continues=continues)


def _continues(request: ConversationFields, last: AnyMessage) -> bool:
    if not request.continue_final_message:
        return False
    param = "continue_final_message"
    if request.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other: set the latter to false"
        raise InvalidRequest(message, param=param)
    if not isinstance(last, Message) or last.role != "assistant" or not text_of(last).strip():
        raise InvalidRequest("The final message, which is to be continued, is no assistant's with a text", param=param)
    return True


def _message(message: AnyMessage) -> dict[str, Any]:
    """The role developer becomes system."""
    made: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    made["content"] = text_of(message)
    if message.name is not None:
        made["name"] = message.name
    if isinstance(message, CallMessage):
        made["tool_calls"] = [call.as_value() for call in message.tool_calls]
    if isinstance(message, ToolMessage):
        made["tool_call_id"] = message.tool_call_id
    elif reasoning := message.reasoning_content or message.reasoning:
        made["reasoning_content"] = reasoning
    return made


def text_of(message: AnyMessage) -> str:
    """Its content, parts on separate lines; empty without any."""
    if isinstance(message.content, list):
        return "\n".join(part.text for part in message.content)
    return message.content or ""
