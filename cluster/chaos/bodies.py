"""The fields that make up each kind of request."""

from collections.abc import Callable
from typing import Any

Body = dict[str, Any]

NOTES = {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,9}$"}, "minItems": 50}
SCHEMA = {"type": "object", "properties": {"notes": NOTES}, "required": ["notes"], "additionalProperties": False}
_TOOLS: Body = {
    "tools": [
        {"type": "function", "function": {"name": "write_down", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "now"}},
    ]
}
_WHOLE: Body = {"stream": False, "stream_options": None}
_TAGS = {
    "triggers": ["e"],  # every "e" begins a part
    "structures": [{"begin": "e", "schema": {"enum": list(range(100))}, "end": " "}],
}
GRAMMAR = r"""
root ::= line+
line ::= word (" " word)* "\n"
word ::= [a-z]+ | "(" word ")"
"""

# Chats, with log probabilities.
CHATS: dict[str, Body] = {
    "chat": {},
    "tools": {"tools": _TOOLS["tools"][:1], "tool_choice": "required", "parallel_tool_calls": False},
    "auto": _TOOLS | {"tool_choice": "auto"},
    "named": _TOOLS | _WHOLE | {"tool_choice": {"type": "function", "function": {"name": "write_down"}}},
    "thinking": {
        "chat_template_kwargs": {"enable_thinking": True},
        "thinking_token_budget": 20,
        "return_token_ids": True,
    },
}
# By kind, the path and the body of what has no tokens of an answer.
POOLED: dict[str, Callable[[str], tuple[str, Body]]] = {
    "embeddings": lambda text: ("/v1/embeddings", {"input": [text * 8, text]}),
    "rerank": lambda text: ("/v1/rerank", {"query": text, "documents": [text * 8, *text.split()]}),
    "score": lambda text: ("/v1/score", {"text_1": text, "text_2": [text * 8, *text.split()]}),
}


def message(text: str, max_tokens: int) -> Body:
    """Of the Messages API."""
    tool = {"name": "write_down", "input_schema": SCHEMA}
    forced = {"tools": [tool], "tool_choice": {"type": "tool", "name": "write_down"}}
    return {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "stream": True} | forced


def response(text: str, max_tokens: int, *, stream: bool = True, calls: bool = False) -> Body:
    """Of the Responses API; `calls`: a tool."""
    tool = {"type": "function", "name": "write_down", "parameters": SCHEMA}
    forced = {"tools": [tool], "tool_choice": "required"} if calls else {}
    return {"input": text, "max_output_tokens": max_tokens, "stream": stream} | forced


def completion(kind: str, max_tokens: int) -> Body:
    match kind:
        case "greedy":
            return {"temperature": 0}
        case "stop":
            return {"stop": ["e ", " t"], "min_tokens": max_tokens // 2}
        case "penalties":
            return {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.1}
        case "choices":
            return {"n": 2, "logprobs": 0}
        case "logprobs":
            return {"logprobs": 3, "top_p": 0.9}
        case "ids":
            usage = {"include_usage": True, "continuous_usage_stats": True}
            return {"return_token_ids": True, "truncate_prompt_tokens": 8, "stream_options": usage}
    return {"logprobs": 0} | _form(kind, max_tokens)


def _form(kind: str, max_tokens: int) -> Body:
    match kind:
        case "schema":
            wanted = {"name": "cargo", "schema": _list_of(max_tokens), "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": wanted}}
        case "object":
            return {"response_format": {"type": "json_object"}}
        case "regex":
            return {"structured_outputs": {"regex": r"(([a-z]{2,9}|[0-9]{1,3}), ){30,}\."}, "n": 2}
        case "grammar":
            return {"guided_grammar": GRAMMAR}
        case "tags":
            return _WHOLE | {"structured_outputs": {"structural_tag": _TAGS}}
    return {"top_k": 50}


def _list_of(length: int) -> Body:
    """The schema of a list so long that an answer of as many tokens does not come to its end."""
    thing = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 9},
            "kind": {"enum": ["stone", "paper", "bird"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 999},
        },
        "required": ["name", "kind", "count"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": thing, "minItems": length}
