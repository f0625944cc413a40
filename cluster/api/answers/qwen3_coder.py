"""Tool calls as Qwen3-Coder writes them: `<function=NAME>` and `<parameter=NAME>` in place of
JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.api.answers.marks import held_back
from cluster.api.answers.parts import Arguments, CallBegun, Content, Part
from cluster.api.answers.schema_types import STRING, as_json, json_value, property_types
from cluster.api.answers.states import StateParser

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3CoderParser(StateParser):
    """A parameter's type comes from the tool's schema: a string's text follows as it is written,
    other values when they are complete. A value that is not of its type is passed on as a string.
    Of a parameter that is repeated the first counts: it may have been passed on already.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """`tools`: those of the request, as the API has them."""
        self._schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
        super().__init__(self._content)
        self._types: frozenset[str] = frozenset()  # of the parameter that is being read

    def _content(self, *, is_end: bool) -> list[Part]:
        places = [place for mark in (BEGIN, FUNCTION) if (place := self._text.find(mark)) >= 0]
        if places:
            before, self._text = self._text[: min(places)], self._text[min(places) :]
            self._state = self._head
            return [Content(before.rstrip())]
        held = 0 if is_end else held_back(self._text, BEGIN, FUNCTION)
        shown = self._text if is_end else self._text[: len(self._text) - held].rstrip()
        self._text = self._text[len(shown) :]
        return [Content(shown)]

    def _head(self, *, is_end: bool) -> list[Part]:
        """From either mark to the end of `<function=NAME>`. A mark that no name follows is
        content.
        """
        rest = self._text.removeprefix(BEGIN).lstrip()
        name, is_closed, after = rest.removeprefix(FUNCTION).partition(">")
        if not is_end and (FUNCTION.startswith(rest) or (rest.startswith(FUNCTION) and not is_closed)):
            return []
        if rest.startswith(FUNCTION) and is_closed and name.strip():
            self._schema: Mapping[str, Any] = self._schemas.get(name.strip(), {})
            self._parameters: set[str] = set()
            self._text, self._state = after, self._between
            return [CallBegun(name.strip())]
        mark = BEGIN if self._text.startswith(BEGIN) else FUNCTION
        self._text, self._state = self._text.removeprefix(mark), self._content
        return [Content(mark)]

    def _between(self, *, is_end: bool) -> list[Part]:
        """Before a parameter, or the end of the function: a part of either mark is not shown."""
        self._text = text = self._text.lstrip()
        name, is_closed, after = text.removeprefix(PARAMETER).partition(">")
        is_part = (
            PARAMETER.startswith(text)
            or (text.startswith(PARAMETER) and not is_closed)
            or (FUNCTION_END.startswith(text) and text != FUNCTION_END)
        )
        if is_part and not is_end:
            return []
        if text.startswith(PARAMETER) and is_closed:
            self._text = after
            return self._begin_parameter(name.strip())
        self._text, self._state = "" if is_part else text.removeprefix(FUNCTION_END), self._after
        return [Arguments("}" if self._parameters else "{}")]

    def _begin_parameter(self, name: str) -> list[Part]:
        if name in self._parameters:
            self._state = self._repeated
            return []
        self._types = property_types(self._schema, name)
        opening = ", " if self._parameters else "{"
        self._parameters.add(name)
        self._state = self._line_end
        return [Arguments(f"{opening}{as_json(name)}: ")]

    def _repeated(self, *, is_end: bool) -> list[Part]:
        """A value that is left out."""
        value, mark, rest = self._text.partition(PARAMETER_END)
        if mark or is_end:
            self._text, self._state = rest, self._between
        else:
            self._text = value[len(value) - held_back(value, PARAMETER_END) :]
        return []

    def _line_end(self, *, is_end: bool) -> list[Part]:
        """The one before a value, which does not belong to it."""
        if not self._text and not is_end:
            return []
        self._text = self._text.removeprefix("\n")
        if self._types != STRING:
            self._state = self._value
            return []
        self._state = self._string
        return [Arguments('"')]

    def _string(self, *, is_end: bool) -> list[Part]:
        value, mark, rest = self._text.partition(PARAMETER_END)
        if mark or is_end:
            self._text, self._state = rest, self._between
            return [Arguments(_escaped(value.removesuffix("\n")) + '"')]
        kept = len(self._text) - held_back(self._text, "\n" + PARAMETER_END, PARAMETER_END)
        shown, self._text = self._text[:kept], self._text[kept:]
        return [Arguments(_escaped(shown))]

    def _value(self, *, is_end: bool) -> list[Part]:
        value, mark, rest = self._text.partition(PARAMETER_END)
        if not mark and not is_end:
            return []
        self._text, self._state = rest, self._between
        return [Arguments(json_value(value.removesuffix("\n"), self._types))]

    def _after(self, *, is_end: bool) -> list[Part]:
        """Behind a function: END, which may be missing, or be there in part."""
        self._text = self._text.lstrip()
        is_part = END.startswith(self._text) and self._text != END
        if is_part and not is_end:
            return []
        self._text, self._state = "" if is_part else self._text.removeprefix(END), self._gap
        return []

    def _gap(self, *, is_end: bool) -> list[Part]:
        """Spaces behind a call, which are not shown."""
        self._text = self._text.lstrip()
        if self._text:
            self._state = self._content
        return []


def _escaped(text: str) -> str:
    """What stands between the quotes of a JSON string; of pieces, the same as of the whole."""
    return as_json(text)[1:-1]
