"""Translates a request of the Messages API to the chat request that asks for the same."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from cluster.api.dialects.messages_api.fields import (
    Block,
    CustomTool,
    DocumentInput,
    InputMessage,
    MessagesPrompt,
    MessagesRequest,
    MessagesToolChoice,
    RedactedThinkingInput,
    TextInput,
    ThinkingConfig,
    ThinkingInput,
    ToolResultInput,
    ToolUseInput,
)
from cluster.api.dialects.naming import Names, named
from cluster.api.models.model import Model
from cluster.api.requests.protocol import ChatRequest
from cluster.api.requests.validate import validate
from engine.errors import InvalidRequest

# A message here may be several of chat: those keep no number.
NAMES: Names = (
    (r"tools\[(\d+)\]\.function\.parameters(.*)", r"tools[\1].input_schema\2"),
    (r"tools\[(\d+)\]\.function\.(.*)", r"tools[\1].\2"),
    (r"tool_choice\..*", "tool_choice"),
    (r"messages.*", "messages"),
    (r"response_format\.json_schema(.*)", r"output_config.format\1"),
    (r"response_format", "output_config.format"),
    (r"reasoning_effort", "output_config.effort"),
    (r"stop(\[\d+\])?", r"stop_sequences\1"),
    (r"continue_final_message", "messages"),
    (r"thinking_token_budget", "thinking.budget_tokens"),
)
_SAME = ("temperature", "top_p", "top_k", "seed", "min_tokens", "ignore_eos", "priority", "cache_salt", "timeout")


def to_chat(asked: MessagesPrompt, model: Model) -> ChatRequest:
    """Raises InvalidRequest."""
    messages = asked.messages
    if messages[-1].role == "assistant" and not messages[-1].content:  # nothing that is to be continued
        messages = messages[:-1]
    fields: dict[str, Any] = {"messages": [*_system(asked), *_messages(messages)]}
    fields |= _tools(asked) | _thinking(asked.thinking, asked.chat_template_kwargs, model) | _output(asked)
    if messages and messages[-1].role == "assistant":
        # What is only counted need not be such that it can be continued.
        continues = isinstance(asked, MessagesRequest) or _has_text_alone(fields["messages"][-1])
        fields |= {"continue_final_message": continues, "add_generation_prompt": False}
    if isinstance(asked, MessagesRequest):
        fields |= {name: getattr(asked, name) for name in _SAME}
        # More than the context has is as much as it leaves: see `Request.ends_with_context`.
        max_tokens = min(asked.max_tokens, model.max_model_len)
        fields |= {"max_tokens": max_tokens, "stream": asked.stream, "stop": asked.stop_sequences}
    with named(NAMES):
        return validate(ChatRequest, {"model": asked.model, **fields})


def _has_text_alone(message: dict[str, Any]) -> bool:
    content = message["content"]
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return "tool_calls" not in message and any(text.strip() for text in texts)


def _system(asked: MessagesPrompt) -> Iterator[dict[str, Any]]:
    if asked.system:
        yield {"role": "system", "content": _texts(asked.system)}


def _texts(content: str | Sequence[TextInput | DocumentInput]) -> str | list[dict[str, str]]:
    """Chat's content, of a text or of blocks of text."""
    return content if isinstance(content, str) else [{"type": "text", "text": _text(block)} for block in content] or ""


def _text(block: TextInput | DocumentInput) -> str:
    """A document's begins with its title and what it is, if that is said."""
    if isinstance(block, TextInput):
        return block.text
    return "\n".join(filter(None, (block.title, block.context, block.source.data)))


def _messages(messages: Sequence[InputMessage]) -> Iterator[dict[str, Any]]:
    for index, message in enumerate(messages):
        if isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        elif message.role == "assistant":
            yield _assistant(message.content, f"messages[{index}].content")
        else:
            yield from _user(message.role, message.content, f"messages[{index}].content")


def _assistant(blocks: Sequence[Block], param: str) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant"}
    texts, thoughts, calls = [], [], []
    for number, block in enumerate(blocks):
        match block:
            case TextInput():
                texts.append(block)
            case ThinkingInput():
                thoughts.append(block.thinking)
            case RedactedThinkingInput():
                pass  # the caller is told so
            case ToolUseInput():
                function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultInput() | DocumentInput():
                message = f"A {block.type} belongs into a message of the user"
                raise InvalidRequest(message, param=f"{param}[{number}]")
    made["content"] = _texts(texts)
    if thoughts:
        made["reasoning_content"] = "\n".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return made


def _user(role: str, blocks: Sequence[Block], param: str) -> Iterator[dict[str, Any]]:
    """A message for each tool's result, and one for the texts between two of them."""
    if not blocks:
        raise InvalidRequest(f"A message of the {role} has a content block", param=param, code="empty_array")
    texts: list[TextInput | DocumentInput] = []
    for number, block in enumerate(blocks):
        match block:
            case TextInput():
                texts.append(block)
            case DocumentInput() if role == "user":
                texts.append(block)
            case ToolResultInput() if role == "user":
                if texts:
                    yield {"role": role, "content": _texts(texts)}
                    texts = []
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _texts(block.content or "")}
            case _:
                message = f"A {block.type} does not belong into a message of the {role}"
                raise InvalidRequest(message, param=f"{param}[{number}]")
    if texts:
        yield {"role": role, "content": _texts(texts)}


def _tools(asked: MessagesPrompt) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if asked.tools:
        fields["tools"] = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(asked.tools)]
    if asked.tool_choice is not None:
        fields |= {"tool_choice": _choice(asked.tool_choice)}
        fields |= {"parallel_tool_calls": not asked.tool_choice.disable_parallel_tool_use}
    return fields


def _tool(tool: CustomTool, param: str) -> dict[str, Any]:
    if tool.input_schema is None:
        name = f"{param}.input_schema"
        raise InvalidRequest(f"'{name}' is required", param=name, code="missing_required_parameter")
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _choice(choice: MessagesToolChoice) -> str | dict[str, Any]:
    if (choice.type == "tool") != (choice.name is not None):
        raise InvalidRequest('A tool_choice of type "tool", and no other, has a name', param="tool_choice.name")
    if choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def _thinking(thinking: ThinkingConfig | None, variables: dict[str, Any] | None, model: Model) -> dict[str, Any]:
    """The model thinks only if it is asked to, as in the API."""
    kind = "disabled" if thinking is None else thinking.type
    if kind == "enabled" and model.reasoning_ids is None:
        message = 'The model cannot think: leave thinking out, or send the type "disabled" or "adaptive"'
        raise InvalidRequest(message, param="thinking", code="unsupported_parameter")
    if thinking is not None and thinking.budget_tokens is not None and kind != "enabled":
        raise InvalidRequest('A budget is for thinking of the type "enabled"', param="thinking.budget_tokens")
    thinks = {} if model.reasoning_ids is None or kind == "adaptive" else {"enable_thinking": kind == "enabled"}
    fields: dict[str, Any] = {"chat_template_kwargs": thinks | (variables or {})}
    if thinking is not None and thinking.budget_tokens is not None:
        fields["thinking_token_budget"] = thinking.budget_tokens
    return fields


def _output(asked: MessagesPrompt) -> dict[str, Any]:
    config = asked.output_config
    if config is None:
        return {}
    fields: dict[str, Any] = {"reasoning_effort": config.effort}
    if config.format is not None:
        named = {"name": "output", "schema": config.format.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    return fields
