"""The requests of a run: every kind of answer that an interruption could change; they follow from
the seed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

KINDS = ("greedy", "seeded", "stop", "penalties", "choices", "logprobs", "chat", "schema", "ids", "tools", "embeddings")
WORDS = (
    "rain harbour seven lantern under march copper the river counts slow engine glass north of winter paper bird "
    "quiet field before light and stone they carry morning away from old tower green little bridge"
).split()
NOTES = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[a-z]{2,9}$"},
    "minItems": 50,
}
SCHEMA = {"type": "object", "properties": {"notes": NOTES}, "required": ["notes"], "additionalProperties": False}
TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "write_down", "parameters": SCHEMA}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


@dataclass(frozen=True, slots=True)
class ChaosRequest:
    """`body` is JSON for POST `path`; a stream with usage at its end, but for embeddings."""

    index: int
    kind: str
    path: str
    body: dict[str, Any]


def make_requests(
    num: int, *, model: str, max_tokens: int, seed: int = 0, kinds: Sequence[str] = KINDS
) -> list[ChaosRequest]:
    """Kinds take turns; answers have full length, unless a stop string ends them in their second
    half, or a call of a tool is complete.
    """
    generator = random.Random(seed)
    return [_make(index, kinds[index % len(kinds)], model, max_tokens, generator) for index in range(num)]


def _make(index: int, kind: str, model: str, max_tokens: int, generator: random.Random) -> ChaosRequest:
    text = " ".join(generator.choice(WORDS) for _ in range(generator.randint(4, 40)))
    if kind == "embeddings":
        return ChaosRequest(index, kind, "/v1/embeddings", {"model": model, "input": [text * 8, text]})
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        "seed": generator.randrange(1 << 31),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if kind in ("chat", "tools"):
        body |= {"messages": [{"role": "user", "content": text}], "logprobs": True, "top_logprobs": 2}
        body |= TOOLS if kind == "tools" else {}
        return ChaosRequest(index, kind, "/v1/chat/completions", body)
    return ChaosRequest(index, kind, "/v1/completions", body | {"prompt": text} | _of_kind(kind, max_tokens))


def _of_kind(kind: str, max_tokens: int) -> dict[str, Any]:
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
        case "schema":
            wanted = {"name": "cargo", "schema": _list_of(max_tokens), "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": wanted}, "logprobs": 0}
        case "ids":
            usage = {"include_usage": True, "continuous_usage_stats": True}
            return {"return_token_ids": True, "truncate_prompt_tokens": 8, "stream_options": usage}
    return {"logprobs": 0, "top_k": 50}


def _list_of(length: int) -> dict[str, Any]:
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
