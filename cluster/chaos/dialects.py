"""Answers and events of the other routes, in the form of completions."""

from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
_DELTAS = ("text", "partial_json", "thinking")  # of a block of the Messages API


def as_completion(event: Event) -> Event:
    """What has `choices` is returned as it is; nothing of an answer has no choices. An item of a
    list is a choice.
    """
    if "choices" in event:
        return event
    for name, item in (("data", _item), ("results", _result)):
        if name in event:
            return {"choices": [item(*pair) for pair in enumerate(event[name])], "usage": event["usage"]}
    read = _EVENTS.get(str(event.get("type", event.get("object"))))
    return {"choices": []} if read is None else read(event)


def _item(_: int, item: Event) -> Event:
    """An embedding, or a score: each number's bits."""
    numbers = item["embedding"] if "embedding" in item else [item["score"]]
    return _ended(item["index"], " ".join(float(number).hex() for number in numbers), "stop")


def _result(place: int, result: Event) -> Event:
    """Of a ranking: its place and its score's bits."""
    return _ended(result["index"], f"{place} {float(result['relevance_score']).hex()}", "stop")


def _ended(index: int, text: str, reason: str) -> Event:
    return {"index": index, "text": text, "finish_reason": reason}


def _part(text: str) -> Event:
    return {"choices": [{"index": 0, "text": text}] if text else []}


def _begun(begun: Event) -> Event:
    """An item or a block: its kind, and what is called."""
    return _part(f"[{begun['type']} {begun.get('name', '')}]")


def _response(response: Event, text: str = "") -> Event:
    """The end of a response."""
    usage = {
        "prompt_tokens": response["usage"]["input_tokens"],
        "completion_tokens": response["usage"]["output_tokens"],
    }
    return {"choices": [_ended(0, text, response["status"])], "usage": usage}


def _whole_response(response: Event) -> Event:
    texts = []
    for item in response["output"]:
        parts = item.get("content") or [{"text": item.get("arguments", "")}]
        texts += [_begun(item)["choices"][0]["text"], *(part["text"] for part in parts)]
    return _response(response, "".join(texts))


def _message_usage(usage: Event) -> Event:
    prompt = usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
    return {"prompt_tokens": prompt, "completion_tokens": usage["output_tokens"]}


def _message_delta(event: Event) -> Event:
    choice = {"index": 0, "text": "", "stop_reason": event["delta"]["stop_reason"]}
    return {"choices": [choice], "usage": _message_usage(event["usage"])}


_EVENTS: dict[str, Callable[[Event], Event]] = {
    "response": _whole_response,
    "response.output_item.added": lambda event: _begun(event["item"]),
    "response.output_text.delta": lambda event: _part(event["delta"]),
    "response.reasoning_text.delta": lambda event: _part(event["delta"]),
    "response.function_call_arguments.delta": lambda event: _part(event["delta"]),
    **dict.fromkeys(("response.completed", "response.incomplete"), lambda event: _response(event["response"])),
    "content_block_start": lambda event: _begun(event["content_block"]),
    "content_block_delta": lambda event: _part("".join(event["delta"].get(name, "") for name in _DELTAS)),
    "message_delta": _message_delta,
    "message_stop": lambda event: {"choices": [_ended(0, "", "stop")]},
}
