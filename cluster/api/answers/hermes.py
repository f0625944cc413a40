"""Tool calls as Qwen2.5 and Qwen3 write them, in the format of Hermes: a JSON object between
`<tool_call>` and `</tool_call>`, with the keys `name` and `arguments`.
"""

import json
import re

from cluster.api.answers.marks import held_back
from cluster.api.answers.parts import Arguments, CallBegun, Content, Part
from cluster.api.answers.schema_types import as_json
from cluster.api.answers.states import StateParser

BEGIN, END = "<tool_call>", "</tool_call>"
_NAME = r'[^"\\<\x00-\x1f\ud800-\udfff]{1,256}'
# The usual order; the arguments' text follows.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"(' + _NAME + r')"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_OUTSIDE = re.compile(r'["{}<]')  # "<" is no JSON outside of a string: the arguments break off there
_INSIDE = re.compile(r'["\\]')


class HermesParser(StateParser):
    """A call begins once its name is known, and its arguments follow as they are written. What is
    between the marks and is no call is content, marks included.
    """

    def __init__(self) -> None:
        super().__init__(self._content)
        self._num_searched = 0  # characters of it in which END does not begin

    def _content(self, *, is_end: bool) -> list[Part]:
        before, mark, rest = self._text.partition(BEGIN)
        if mark:
            self._text, self._state = rest, self._head
            self._num_searched = 0
            return [Content(before.rstrip())]
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
            return [CallBegun(head[1])]
        place = self._text.find(END, self._num_searched)
        if place < 0 and not is_end:
            self._num_searched = max(0, len(self._text) - len(END))
            return []
        body, rest = (self._text, "") if place < 0 else (self._text[:place], self._text[place + len(END) :])
        self._text = rest
        if call := _whole_call(body):
            self._state = self._after
            return call
        self._state = self._content
        return [Content(BEGIN + body + (END if place >= 0 else ""))]

    def _arguments(self, *, is_end: bool) -> list[Part]:
        length = self._scan.take(self._text)
        shown, self._text = self._text[:length], self._text[length:]
        if self._scan.has_ended:
            self._state = self._tail
        return [Arguments(shown)]

    def _tail(self, *, is_end: bool) -> list[Part]:
        """The object's closing brace and END, neither of which is shown; before the next call, END
        may be missing.
        """
        before, mark, rest = self._text.partition(END)
        if (following := before.find(BEGIN)) >= 0:
            self._text, self._state = self._text[following:], self._content
        elif mark:
            self._text, self._state = rest, self._after
        else:
            self._text = before[len(before) - held_back(before, BEGIN, END) :]
        return []

    def _after(self, *, is_end: bool) -> list[Part]:
        self._text = self._text.lstrip()
        if self._text:
            self._state = self._content
        return []


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
        name, arguments = call["name"], call.get("arguments", call.get("parameters"))
        if not re.fullmatch(_NAME, name):
            return []
        # A text is JSON in JSON, as the API itself has it.
        return [CallBegun(name), Arguments(arguments if isinstance(arguments, str) else as_json(arguments or {}))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
