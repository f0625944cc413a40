"""Tool calls as Qwen2.5 and Qwen3 write them, in the format of Hermes: a JSON object between
`<tool_call>` and `</tool_call>`, with the keys `name` and `arguments`.
"""

import json
import re
from typing import Any

from cluster.api.answers.marks import held_back
from cluster.api.answers.parts import Arguments, CallBegun, Content, Part

BEGIN, END = "<tool_call>", "</tool_call>"
# The usual order; the arguments' text follows.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_OUTSIDE = re.compile(r'["{}<]')  # "<" is no JSON outside of a string: the arguments break off there
_INSIDE = re.compile(r'["\\]')


class HermesParser:
    """A call begins once its name is known, and its arguments follow as they are written. What is
    between the marks and is no call is content, marks included.
    """

    def __init__(self) -> None:
        self._state = self._content
        self._text = ""  # not decided yet

    def add(self, text: str) -> list[Part]:
        self._text += text
        return self._state(is_end=False)

    def end(self) -> list[Part]:
        return self._state(is_end=True)

    def _content(self, *, is_end: bool) -> list[Part]:
        before, mark, rest = self._text.partition(BEGIN)
        if mark:
            self._text, self._state = rest, self._head
            return [Content(before.rstrip()), *self._head(is_end=is_end)]
        # Spaces before a call are left out, so they wait for what follows.
        held = 0 if is_end else held_back(before, BEGIN)
        shown = before if is_end else before[: len(before) - held].rstrip()
        self._text = before[len(shown) :]
        return [Content(shown)]

    def _head(self, *, is_end: bool) -> list[Part]:
        head = _HEAD.match(self._text)
        if head:
            self._text = self._text[head.end() :]
            self._scan = _Scan()
            self._state = self._arguments
            return [CallBegun(json.loads(head[1])), *self._arguments(is_end=is_end)]
        body, mark, rest = self._text.partition(END)
        if not mark and not is_end:
            return []
        self._text = rest
        if call := _whole_call(body):
            self._state = self._after
            return [*call, *self._after(is_end=is_end)]
        self._state = self._content
        return [Content(BEGIN + body + mark), *self._content(is_end=is_end)]

    def _arguments(self, *, is_end: bool) -> list[Part]:
        length = self._scan.take(self._text)
        shown, self._text = self._text[:length], self._text[length:]
        if self._scan.has_ended:
            self._state = self._tail
            return [Arguments(shown), *self._tail(is_end=is_end)]
        return [Arguments(shown)]

    def _tail(self, *, is_end: bool) -> list[Part]:
        """The object's closing brace and END, neither of which is shown."""
        _, mark, rest = self._text.partition(END)
        if not mark:
            return []
        self._text, self._state = rest, self._after
        return self._after(is_end=is_end)

    def _after(self, *, is_end: bool) -> list[Part]:
        self._text = self._text.lstrip()
        if not self._text:
            return []
        self._state = self._content
        return self._content(is_end=is_end)


class _Scan:
    """Finds where a JSON object ends in a text that arrives in pieces."""

    def __init__(self) -> None:
        self.has_ended = False
        self._depth = 0
        self._is_string = False
        self._skips = 0  # characters of the next piece that belong to an escape

    def take(self, text: str) -> int:
        """The number of characters of the text that belong to the object."""
        position, self._skips = self._skips, 0
        while found := (_INSIDE if self._is_string else _OUTSIDE).search(text, position):
            position = found.end()
            match found[0]:
                case '"':
                    self._is_string = not self._is_string
                case "\\":
                    position += 1
                case "{":
                    self._depth += 1
                case "}":
                    self._depth -= 1
                    if not self._depth:
                        self.has_ended = True
                        return position
                case "<":
                    self.has_ended = True
                    return found.start()
        self._skips = max(0, position - len(text))
        return len(text)


def _whole_call(body: str) -> list[Part]:
    """A call in another form, known at its end; nothing if it is none."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return []
    arguments: Any = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):  # JSON in JSON, as the API itself has it
        return [CallBegun(call["name"]), Arguments(arguments)]
    return [CallBegun(call["name"]), Arguments(json.dumps(arguments or {}, ensure_ascii=False))]
