"""Translates a request of the Responses API to the chat request that asks for the same."""

from collections.abc import Sequence
from typing import Any

import msgspec

from cluster.api.dialects.naming import Names, named
from cluster.api.dialects.responses_api.answer import OutputCall, OutputItem
from cluster.api.dialects.responses_api.fields import (
    LOGPROBS,
    AllowedChoice,
    FunctionChoice,
    FunctionTool,
    ResponsesRequest,
    TextFormat,
)
from cluster.api.dialects.responses_api.items import (
    OUTPUT,
    Content,
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from cluster.api.requests.protocol import ChatRequest
from cluster.api.requests.validate import validate
from engine.errors import InvalidRequest

# A message of chat may be several items: those keep no number.
NAMES: Names = (
    (r"tools\[(\d+)\]\.function\.(.*)", r"tools[\1].\2"),
    (r"tool_choice\..*", "tool_choice"),
    (r"messages.*", "input"),
    (r"max_tokens", "max_output_tokens"),
    (r"response_format\.json_schema(.*)", r"text.format\1"),
    (r"response_format", "text.format"),
    (r"reasoning_effort", "reasoning.effort"),
)
_SAME = (
    *("parallel_tool_calls", "temperature", "top_p", "top_k", "seed", "stop", "min_tokens", "ignore_eos"),
    *("priority", "cache_salt", "timeout", "chat_template_kwargs", "stream"),
)


def to_chat(asked: ResponsesRequest, messages: Sequence[dict[str, Any]]) -> ChatRequest:
    """`messages`: the conversation without the instructions; raises InvalidRequest."""
    fields: dict[str, Any] = {name: getattr(asked, name) for name in _SAME}
    first = [] if asked.instructions is None else [{"role": "system", "content": asked.instructions}]
    fields |= {"model": asked.model, "messages": [*first, *messages], "max_tokens": asked.max_output_tokens}
    fields["tools"] = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(asked.tools or ())] or None
    fields["tool_choice"] = _choice(asked.tool_choice)
    if asked.reasoning is not None:
        fields["reasoning_effort"] = asked.reasoning.effort
    if asked.top_logprobs or LOGPROBS in (asked.include or ()):
        fields |= _logprobs(asked)
    if asked.text is not None and asked.text.format is not None:
        fields["response_format"] = _format(asked.text.format)
    with named(NAMES):
        return validate(ChatRequest, fields)


def as_messages(asked: str | Sequence[Item]) -> list[dict[str, Any]]:
    """Those of chat that the input is. Neighbouring items of one turn of the assistant's are one:
    its reasoning, a text, calls.
    """
    if isinstance(asked, str):
        return [{"role": "user", "content": asked}]
    made: list[dict[str, Any]] = []
    for item in asked:
        match item:
            case MessageItem(role="assistant"):
                _turn(made, "content")["content"] = _content(item.content)
            case MessageItem():
                made.append({"role": item.role, "content": _content(item.content)})
            case FunctionCallItem():
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                _turn(made).setdefault("tool_calls", []).append(call)
            case FunctionOutputItem():
                made.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
            case ReasoningItem(content=[_, *_] as parts):
                thought = "\n".join(part.text for part in parts)
                _turn(made, "reasoning_content", "content")["reasoning_content"] = thought
    return [{"content": ""} | message for message in made]


def messages_of(output: Sequence[OutputItem]) -> list[dict[str, Any]]:
    """As if they were sent back, but for a call that was cut off."""
    whole = [item for item in output if not (isinstance(item, OutputCall) and item.status == "incomplete")]
    return as_messages(OUTPUT.validate_json(msgspec.json.encode(whole))) if whole else []


def _turn(made: list[dict[str, Any]], *absent: str) -> dict[str, Any]:
    """The assistant's last message, if nothing came after it and it has none of these and no call
    yet; otherwise a new one. A call goes with the calls before it.
    """
    last = made[-1] if made else {}
    if last.get("role") != "assistant" or any(name in last for name in absent) or (absent and "tool_calls" in last):
        made.append({"role": "assistant"})
    return made[-1]


def _content(content: Content) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": part.text} for part in content] or ""


def _tool(tool: FunctionTool, param: str) -> dict[str, Any]:
    if tool.name is None:
        raise InvalidRequest(f"'{param}.name' is required", param=f"{param}.name", code="missing_required_parameter")
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _choice(choice: str | FunctionChoice | AllowedChoice | None) -> str | dict[str, Any] | None:
    match choice:
        case FunctionChoice(name=name):
            return {"type": "function", "function": {"name": name}}
        case AllowedChoice(mode=mode, tools=tools):
            return {
                "type": "allowed_tools",
                "allowed_tools": {"mode": mode, "tools": [_choice(tool) for tool in tools]},
            }
        case _:
            return choice


def _logprobs(asked: ResponsesRequest) -> dict[str, Any]:
    if asked.tools and asked.tool_choice != "none":
        param = "top_logprobs" if asked.top_logprobs else "include"
        raise InvalidRequest("Log probabilities are told of answers without tools only", param=param)
    return {"logprobs": True, "top_logprobs": asked.top_logprobs or 0}


def _format(wanted: TextFormat) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    schema = {"name": wanted.name, "schema": wanted.schema_}
    for name, value in schema.items():
        if value is None:
            param = f"text.format.{name}"
            raise InvalidRequest(f"'{param}' is required", param=param, code="missing_required_parameter")
    return {"type": "json_schema", "json_schema": schema}
