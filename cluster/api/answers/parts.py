"""The kinds of parts in the text of a chat's answer."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Content(NamedTuple):
    text: str


class Reasoning(NamedTuple):
    text: str


class CallBegun(NamedTuple):
    """The next tool call; its arguments follow."""

    name: str


class Arguments(NamedTuple):
    """More of the JSON text of the last call's arguments."""

    text: str


Part = Content | Reasoning | CallBegun | Arguments


class TextParser(Protocol):
    """Splits a text that arrives in pieces. The parts, joined, do not depend on how it was cut:
    what may be the beginning of a mark is held back until it is known.
    """

    def add(self, text: str) -> Sequence[Part]:
        """The parts that are known with this piece."""

    def end(self) -> Sequence[Part]:
        """What was held back, at the text's end."""


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same with neighbours of one kind as one, and without empty ones."""
    made: list[Part] = []
    for part in parts:
        match made[-1:], part:
            case [Content(before)], Content(text):
                made[-1] = Content(before + text)
            case [Reasoning(before)], Reasoning(text):
                made[-1] = Reasoning(before + text)
            case [Arguments(before)], Arguments(text):
                made[-1] = Arguments(before + text)
            case _, CallBegun():
                made.append(part)
            case _ if part[0]:
                made.append(part)
    return made
