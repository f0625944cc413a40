"""Arguments of a tool call that are no JSON, as those of an answer that was cut off in them."""

import json
from collections.abc import ItemsView
from typing import Any

from pydantic_core import from_json


class RawArguments(str):
    """For chat templates, which show the arguments of other calls by `tojson`, as a text or pair by
    pair: the text is shown as it is, and has the pairs that can be read of it.
    """

    def items(self) -> ItemsView[str, Any]:
        return as_far_as_read(self).items()


def as_far_as_read(arguments: str) -> dict[str, Any]:
    """The object that a call's arguments are: as much of it as there is, if the answer was cut off
    in it; none if they are something else, which a model may write that was not forced to.
    """
    try:
        value = json.loads(arguments)
    except RecursionError:
        return {}
    except ValueError:
        try:
            value = from_json(arguments, allow_partial="trailing-strings")
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def mark_raw(messages: list[dict[str, Any]]) -> None:
    """In place: arguments that are a text."""
    for message in messages:
        match message:
            case {"tool_calls": [*calls]}:
                for call in calls:
                    match call:
                        case {"function": {"arguments": str() as text} as function}:
                            function["arguments"] = RawArguments(text)
