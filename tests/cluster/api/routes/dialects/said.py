"""What a scripted model says, and the events that a client gets."""

import json
from typing import Any

import httpx

from tests.cluster.api.scripted import Running

# All kinds of parts: reasoning, a text, two calls.
TEXTS = [
    *("<think>", "\nOne", " two\n", "</think>", "\n\nLet me", " look.", "\n<tool_call>\n"),
    *('{"name": "weather", ', '"arguments": {"city": "Bre', 'men"}}', "\n</tool_call>", "\n<tool_call>\n"),
    *('{"name": "weather", "arguments": {}}', "\n</tool_call>"),
]


def events_of(server: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """As they are sent; each has its name twice."""
    found = []
    with httpx.stream("POST", f"{server.url}{path}", json=body | {"stream": True}, timeout=20) as answer:
        text = answer.read().decode()
    for part in text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found
