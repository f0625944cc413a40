"""A parser by states: whatever way the text is cut, its parts are the same."""

from cluster.api.answers.marks import cut
from cluster.api.answers.parts import Content, Part, Reasoning, joined
from cluster.api.answers.states import StateParser


class Bracketed(StateParser):
    """What is in brackets is reasoning."""

    def __init__(self) -> None:
        super().__init__(self._outside)

    def _outside(self, *, is_end: bool) -> list[Part]:
        return self._until("[[", Content, self._inside, is_end)

    def _inside(self, *, is_end: bool) -> list[Part]:
        return self._until("]]", Reasoning, self._outside, is_end)

    def _until(self, mark: str, kind: type[Content] | type[Reasoning], following: object, is_end: bool) -> list[Part]:
        before, found, rest = self._text.partition(mark)
        if found:
            self._text, self._state = rest, following  # type: ignore[assignment]
            return [kind(before)]
        before, self._text = (self._text, "") if is_end else cut(self._text, mark)
        return [kind(before)]


def parse(*pieces: str) -> list[Part]:
    parser = Bracketed()
    return joined([part for piece in pieces for part in parser.add(piece)] + parser.end())


def test_one_piece_may_go_through_several_states() -> None:
    assert parse("a[[b]]c[[d]]") == [Content("a"), Reasoning("b"), Content("c"), Reasoning("d")]


def test_the_parts_do_not_depend_on_the_pieces() -> None:
    text = "x[y[[z]]]w["
    whole = parse(text)
    assert whole == [Content("x[y"), Reasoning("z"), Content("]w[")]
    for first in range(len(text)):
        for second in range(first, len(text)):
            assert parse(text[:first], text[first:second], text[second:]) == whole
    assert parse(*text) == whole


def test_what_is_held_back_comes_at_the_end() -> None:
    parser = Bracketed()
    assert joined(parser.add("a[")) == [Content("a")]
    assert joined(parser.end()) == [Content("[")]
