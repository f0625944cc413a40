"""Translates a requested format to a grammar of llguidance, and compiles it within limits."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from engine.structured_outputs import Kind

# What JSON may have between its parts: nothing, a space, or a new line and its indent. With any
# white space an answer could go on without an end.
WHITESPACE = r"( |\n[ \t]{0,40})?"
# Where only one text can follow, the library would tokenize it, again for each token of it, and
# allow no other tokens of that text.
FREE = '\n%llguidance {"no_forcing": true}\n'
# In the library's units of work, for one token's mask: some 5 ms. A lexer that takes the place of
# an exhausted one has more: it has not seen what the first one learned on the way to a token.
FUEL, RENEWED_FUEL = 200_000, 1_000_000
# On the smaller one a grammar is tried, in a process that may end by it; what passes fits into the
# larger one by far.
TRIAL_STACK, STACK = 4 << 20, 16 << 20  # bytes
_starting = threading.Lock()
T = TypeVar("T")
_RULE = re.compile(r"^[ \t]*([\w-]+)\s*::=", re.MULTILINE)  # of GBNF
_DUMP = re.compile(r"\n<|\n *\d+ \| ")
_PLACE = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")


def grammar_source(kind: Kind, text: str) -> str:
    """Raises ValueError for a text that is no grammar; most mistakes show when it is compiled."""
    try:
        match kind:
            case "json":
                return _of_schema(json.loads(text))
            case "json_object":
                return _of_schema({"type": "object"})
            case "choice":
                return _of_lark("start: " + " | ".join(map(json.dumps, json.loads(text))))
            case "regex":
                return _of_lark(f"start: /{regex_to_lark(text)}/")
            case "grammar":
                return _of_lark(_to_lark(text))
            case "structural_tag":
                return _of_lark(_of_tags(**json.loads(text)))
    except RecursionError as error:
        raise ValueError(str(error)) from None


def on_stack(num_bytes: int, work: Callable[[], T]) -> T:
    """What `work` returns or raises, in a thread with so large a stack: the library recurses as
    deep as a schema's references go, and the end of a stack is the end of the process.
    """
    done: Future[T] = Future()

    def work_and_tell() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # the caller's
            done.set_exception(error)

    start_on_stack(num_bytes, work_and_tell, "grammar").join()
    return done.result()


def start_on_stack(num_bytes: int, work: Callable[[], None], name: str) -> threading.Thread:
    """The thread in which `work` has begun, with so large a stack."""
    with _starting:
        before = threading.stack_size(num_bytes)
        try:
            thread = threading.Thread(target=work, name=name)
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


def limits(fuel: int) -> LLParserLimits:
    """The first three bound compiling, though not all of it (see `trial`); the others one mask."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        max_grammar_size=200_000,
        max_lexer_states=50_000,
        step_lexer_fuel=fuel,
        step_max_items=50_000,
        verbose_errors=False,
    )


def compiled(source: str, vocabulary: LLTokenizer, fuel: int = FUEL) -> LLMatcher:
    """At the grammar's beginning; raises ValueError if there is no such grammar, or it allows
    nothing.
    """
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=limits(fuel))
    if matcher.is_error():
        raise ValueError(reason(matcher))
    trial = matcher.deep_copy()
    trial.compute_bitmask()
    if trial.is_error():
        raise ValueError(f"it allows no answer: {reason(trial)}")
    return matcher


def reason(matcher: LLMatcher) -> str:
    """Its error in one line, without the grammar and the state that follow it."""
    return _PLACE.sub("", " ".join(_DUMP.split(str(matcher.get_error()))[0].split()))


def _to_lark(grammar: str) -> str:
    """Of a grammar as GBNF, or as Lark."""
    # Of a rule that Lark has twice, the library says so; of one of GBNF it takes the last.
    for name, count in Counter(_RULE.findall(grammar)).items():
        if count > 1:
            raise ValueError(f"Rule {name!r} already exists")
    try:
        return str(any_to_lark(grammar))
    except IndexError:  # the library's own, after a backslash at the end
        raise ValueError("Unexpected end of input") from None
    except Exception as error:  # a bare one for rules that are missing, or get one name
        raise ValueError(str(error)) from None


def _of_schema(schema: Any) -> str:
    return _of_lark(f"start: {_json(schema)}")


def _json(schema: Any) -> str:
    if isinstance(schema, dict):
        schema = schema | {"x-guidance": {"whitespace_pattern": WHITESPACE}}
    return f"%json {json.dumps(schema)}"


def _of_tags(triggers: list[str], structures: list[dict[str, Any]]) -> str:
    """Any text; after a trigger the rest of a beginning that has it, JSON of its schema, its end.

    A lazy rule ends where the trigger does, so that no text goes on over it.
    """
    rules, groups = ["text: TEXT", r"TEXT: /(.|\n)*/"], []
    left = list(enumerate(structures))
    for number, trigger in enumerate(sorted(triggers, key=len)):  # one that begins another comes before it
        mine = [(place, tag) for place, tag in left if tag["begin"].startswith(trigger)]
        left = [pair for pair in left if pair not in mine]
        if not mine:
            continue
        groups.append(f"group{number}")
        rules.append(f"trigger{number}[lazy]: TEXT {json.dumps(trigger)}")
        rules.append(f"group{number}: trigger{number} ({' | '.join(f'tag{place}' for place, _ in mine)})")
        for place, tag in mine:
            texts = [json.dumps(text) if text else "" for text in (tag["begin"][len(trigger) :], tag["end"])]
            rules.append(f"tag{place}: {texts[0]} {_json(tag['schema'])} {texts[1]}")
    return "\n".join([f"start: ({' | '.join(groups)})* text", *rules])


def _of_lark(rules: str) -> str:
    return str(LLMatcher.grammar_from_lark(rules + FREE))
