"""The parts of an answer, whole and in pieces: however the text is cut, they are the same."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.answers.chat_parser import ChatParser
from cluster.api.answers.hermes import HermesParser
from cluster.api.answers.parts import Arguments, CallBegun, Content, Part, Reasoning, joined
from cluster.api.answers.qwen3_coder import Qwen3CoderParser
from cluster.api.answers.reasoning import ReasoningParser

SCHEMA = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "fine": {"type": ["boolean", "null"]},
    "where": {"type": "object"},
    "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "level": {"enum": [1, 2, "high"]},
    "place": {"$ref": "#/$defs/number"},
    "five": {"const": 5},
}
DEFINITIONS = {"number": {"type": "integer"}}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"properties": SCHEMA, "$defs": DEFINITIONS}}}
]


def make(kind: str) -> ChatParser:
    calls = Qwen3CoderParser(TOOLS) if "coder" in kind else HermesParser()
    return ChatParser(ReasoningParser(is_inside="inside" in kind), calls)


def parse(kind: str, pieces: list[str]) -> list[Part]:
    parser = make(kind)
    return joined([*(part for piece in pieces for part in parser.add(piece)), *parser.end()])


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Par}is <x> \\"</tool_call>", "at": {}}}\n</tool_call>'
ARGUMENTS = '{"city": "Par}is <x> \\"</tool_call>", "at": {}}'
CODER = """<tool_call>
<function=weather>
<parameter=city>
Par"is
</param> </function>
</parameter>
<parameter=days>
3
</parameter>
<parameter=fine>
True
</parameter>
<parameter=where>
{"a": [1]}
</parameter>
<parameter=unit>
null
</parameter>
<parameter=level>
high
</parameter>
<parameter=other>
1
</parameter>
</function>
</tool_call>"""
VALUES = {
    "city": 'Par"is\n</param> </function>',
    "days": 3,
    "fine": True,
    "where": {"a": [1]},
    "unit": None,
    "level": "high",
    "other": "1",
}
CASES = [
    ("hermes", "", []),
    ("hermes", "Hello <b> world \n", [Content("Hello <b> world \n")]),
    ("hermes", "<think>\n\n</think>\n\nHi", [Content("Hi")]),
    ("hermes", "<think>\nOne\n\ntwo\n</think>\n\nHi", [Reasoning("One\n\ntwo"), Content("Hi")]),
    ("hermes", "\n<think>a</think>", [Reasoning("a")]),
    ("hermes", "<think>\nnever ends\n", [Reasoning("never ends\n")]),
    ("hermes", "<thin", [Content("<thin")]),
    ("hermes", "I say <think>no</think>", [Content("I say <think>no</think>")]),
    ("inside", "\nHm.\n</think>\n\nHi", [Reasoning("Hm."), Content("Hi")]),
    ("inside", "Hm. " + CALL, [Reasoning("Hm. " + CALL)]),
    ("hermes", CALL, [CallBegun("weather"), Arguments(ARGUMENTS)]),
    ("hermes", f"Let me see.\n{CALL}\n", [Content("Let me see."), CallBegun("weather"), Arguments(ARGUMENTS)]),
    (
        "hermes",
        f"<think>\nA\n</think>\n\n{CALL}\n{CALL} Done",
        [Reasoning("A"), *[CallBegun("weather"), Arguments(ARGUMENTS)] * 2, Content("Done")],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": "é"}, "name": "f"}</tool_call>',
        [CallBegun("f"), Arguments('{"a": "é"}')],
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', [CallBegun("f"), Arguments("{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', [CallBegun("f"), Arguments('{"a": 1}')]),
    ("hermes", "<tool_call>what?</tool_call> x", [Content("<tool_call>what?</tool_call> x")]),
    ("hermes", "<tool_call>[1]", [Content("<tool_call>[1]")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', [CallBegun("f"), Arguments('{"a": "b')]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>x',
        [CallBegun("f"), Arguments('{"a": 1'), Content("x")],
    ),
    (
        "hermes",
        f"{CALL.removesuffix('</tool_call>')}{CALL}x",
        [*[CallBegun("weather"), Arguments(ARGUMENTS)] * 2, Content("x")],
    ),
    ("hermes", "a <tool_c", [Content("a <tool_c")]),
    (
        "hermes",
        '<tool_call>{"name": "a</tool_call>b", "arguments": {}}',
        [Content('<tool_call>{"name": "a</tool_call>b", "arguments": {}}')],
    ),
    ("hermes", '<tool_call>{"name": "a\\qb", "arguments": {', [Content('<tool_call>{"name": "a\\qb", "arguments": {')]),
    (
        "hermes",
        '<tool_call>{"name": "\\ud800", "arguments": {}}',
        [Content('<tool_call>{"name": "\\ud800", "arguments": {}}')],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"x": "\\ud800"}, "name": "f"}</tool_call>',
        [CallBegun("f"), Arguments('{"x": "\\ud800"}')],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"x": 1e999}, "name": "f"}',
        [Content('<tool_call>{"arguments": {"x": 1e999}, "name": "f"}')],
    ),
    ("hermes", CALL * 500, [CallBegun("weather"), Arguments(ARGUMENTS)] * 500),
    ("hermes", "<tool_call></tool_call>" * 500, [Content("<tool_call></tool_call>" * 500)]),
    ("coder", "<function=></function>", [Content("<function=></function>")]),
    (
        "coder",
        '<function=weather>\n<parameter=where>\n{"A": True}\n</parameter>\n</function>',
        [CallBegun("weather"), Arguments('{"where": "{\\"A\\": True}"}')],
    ),
    (
        "coder",
        '<function=weather>\n<parameter=unit>\n"\\ud800"\n</parameter>\n</function>',
        [CallBegun("weather"), Arguments('{"unit": "\\ud800"}')],
    ),
    (
        "coder",
        "<function=weather>\n<parameter=place>\n5\n</parameter>\n<parameter=five>\n5\n</parameter>\n</function>",
        [CallBegun("weather"), Arguments('{"place": 5, "five": 5}')],
    ),
    ("coder", CODER, [CallBegun("weather"), Arguments(json.dumps(VALUES))]),
    (
        "coder",
        f"See: \n{CODER}\n{CODER}\nend",
        [Content("See:"), *[CallBegun("weather"), Arguments(json.dumps(VALUES))] * 2, Content("end")],
    ),
    (
        "coder",
        "<function=now>\n</function> ok",
        [CallBegun("now"), Arguments("{}"), Content("ok")],
    ),
    ("coder", "<tool_call>\nnothing", [Content("<tool_call>\nnothing")]),
    (
        "coder",
        "<function=weather><parameter=city>Oslo",
        [CallBegun("weather"), Arguments('{"city": "Oslo"}')],
    ),
    ("coder", "1 < 2 <func", [Content("1 < 2 <func")]),
    (
        "coder",
        "<function=weather><parameter=days>1</parameter><parameter=city>Oslo</parameter>"
        "<parameter=days>\n2\n</parameter><parameter=city>Rome</param></parameter></function>",
        [CallBegun("weather"), Arguments('{"days": 1, "city": "Oslo"}')],
    ),
    (
        "coder",
        "<function=weather><parameter=days>1</parameter><parameter=days>2",
        [CallBegun("weather"), Arguments('{"days": 1}')],
    ),
]


@pytest.mark.parametrize(("kind", "text", "parts"), CASES)
def test_a_text_has_these_parts(kind: str, text: str, parts: list[Part]) -> None:
    assert parse(kind, [text]) == parts
    assert parse(kind, list(text)) == parts


MAX_SHOWN = 30_000  # characters of a value; of longer ones Hypothesis warns, in place of showing what has failed
TEXTS = [text for _, text, _ in CASES if len(text) < MAX_SHOWN]
PIECES = ["<tool_call>", "</tool_call>", "<function=f>", "<parameter=city>", "</parameter>", "</function>"]
PIECES += ['{"name": "f", "arguments": ', '{"a": "', '"}', "}", "\\", "\n", " ", "x", "<think>", "</think>", "<", "é"]


@settings(deadline=None)
@given(
    st.sampled_from(["hermes", "coder", "inside", "inside coder"]),
    st.sampled_from(TEXTS) | st.lists(st.sampled_from(PIECES)).map("".join),
    st.data(),
)
def test_how_a_text_is_cut_does_not_matter(kind: str, text: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]

    assert parse(kind, pieces) == parse(kind, [text])


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_no_argument_is_there_twice(text: str) -> None:
    for part in parse("coder", ["<function=f>" + text]):
        if isinstance(part, Arguments):
            json.loads(part.text, object_pairs_hook=_distinct)


def _distinct(pairs: list[tuple[str, object]]) -> None:
    assert len({name for name, _ in pairs}) == len(pairs)


@pytest.mark.parametrize(("kind", "call", "begun"), [("hermes", CALL, ": {"), ("coder", CODER, "weather>")])
def test_no_part_of_a_mark_is_content_once_a_call_has_begun(kind: str, call: str, begun: str) -> None:
    for length in range(call.index(begun) + len(begun), len(call)):
        kinds = [type(part) for part in parse(kind, [call[:length]])]
        assert kinds == [CallBegun, Arguments], call[:length]


def test_arguments_arrive_while_they_are_written() -> None:
    hermes = make("hermes")
    assert hermes.add('<tool_call>{"name": "f", "arg') == []
    assert hermes.add('uments": {"a": "b') == [CallBegun("f"), Arguments('{"a": "b')]
    assert hermes.add('c"') == [Arguments('c"')]

    coder = make("coder")
    assert coder.add("<tool_call>\n<function=weather>\n<param") == [CallBegun("weather")]
    assert coder.add("eter=city>\nPa") == [Arguments('{"city": "Pa')]
    assert coder.add("ris\n</") == [Arguments("ris")]
