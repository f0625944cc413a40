"""What a client received, in a form that can be compared bit by bit and hashed."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from cluster.chaos.dialects import as_completion


@dataclass(slots=True)
class Choice:
    """One answer so far. A logprob is its float's bits, as hexadecimal."""

    text: str = ""
    tokens: list[str] = field(default_factory=list)  # if logprobs were requested: each token's text and logprobs
    finish_reason: str | None = None
    stop_reason: Any = None
    token_ids: list[int] = field(default_factory=list)  # if they were requested

    @property
    def pieces(self) -> list[str]:
        """By token if tokens are known, otherwise by character."""
        return self.tokens or list(self.text)


@dataclass(slots=True)
class Transcript:
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: tuple[int, int] | None = None  # tokens of the prompt and of the answers

    @property
    def is_complete(self) -> bool:
        """The server has sent each choice's finish_reason, and the usage."""
        return (
            self.usage is not None
            and bool(self.choices)
            and all(choice.finish_reason is not None for choice in self.choices.values())
        )

    def take(self, event: dict[str, Any]) -> bool:
        """Add an event of a stream, or a complete answer, of any route; returns whether it had a
        part of an answer.
        """
        event = as_completion(event)
        usage = event.get("usage")
        if usage is not None:
            self.usage = usage["prompt_tokens"], usage.get("completion_tokens", 0)
        parts = event["choices"]
        for part in parts:
            choice = self.choices.setdefault(part["index"], Choice())
            choice.text += _text(part)
            choice.tokens += _tokens(part.get("logprobs") or {})
            choice.token_ids += part.get("token_ids") or ()
            choice.finish_reason = part.get("finish_reason") or choice.finish_reason
            choice.stop_reason = part.get("stop_reason") or choice.stop_reason
        return bool(parts)

    def digest(self) -> str:
        """SHA-256 of all of it, in hexadecimal."""
        choices = [
            [index, choice.text, choice.tokens, choice.token_ids, choice.finish_reason, choice.stop_reason]
            for index, choice in sorted(self.choices.items())
        ]
        return hashlib.sha256(json.dumps([choices, self.usage]).encode()).hexdigest()


def _text(part: dict[str, Any]) -> str:
    """Of a completion, of a chat's delta, or of its message, with its calls of tools."""
    if "text" in part:
        return str(part["text"])
    told = part["message"] if "message" in part else part.get("delta", {})
    calls = [call["function"] for call in told.get("tool_calls") or ()]
    # A call's name comes once, before its arguments.
    return (
        (told.get("reasoning") or "")
        + (told.get("content") or "")
        + "".join((f"[{call['name']}]" if call.get("name") else "") + (call.get("arguments") or "") for call in calls)
    )


def _tokens(logprobs: dict[str, Any]) -> list[str]:
    """For each token a text that identifies it, its logprob and its top logprobs."""
    if "content" in logprobs:
        return [
            _token(entry["token"], entry["logprob"], [[top["token"], top["logprob"]] for top in entry["top_logprobs"]])
            for entry in logprobs["content"]
        ]
    columns = zip(
        logprobs.get("tokens", ()), logprobs.get("token_logprobs", ()), logprobs.get("top_logprobs", ()), strict=True
    )
    return [_token(token, logprob, sorted((top or {}).items())) for token, logprob, top in columns]


def _token(text: str, logprob: float, rivals: list[Any]) -> str:
    return json.dumps([text, logprob.hex(), [[rival, value.hex()] for rival, value in rivals]])
