"""Which tokens may come next, as a function of those that came."""

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest

from engine.errors import InputProcessingError
from engine.grammars import grammar, source
from engine.grammars.interface import Constraint, Matcher
from engine.grammars.kept import Grammars
from engine.structured_outputs import structured
from tests.engine.support.workloads import TOKENIZER

EOS = (767, 766)
VOCAB = 800
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", None]}, "maxItems": 3},
        "id": {"type": "string", "pattern": "^[0-9a-f]{4}(-[0-9a-f]{4})?$"},
    },
    "required": ["name", "age", "tags", "id"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, VOCAB, EOS)


def allowed(*matchers: Matcher, banned: Sequence[int] = ()) -> list[list[int]]:
    masks = matchers[0].masks.fill([Constraint(matcher, banned) for matcher in matchers])
    assert masks.shape == (len(matchers), VOCAB // 32)
    return [np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist() for mask in masks]


def walk(matcher: Matcher, rng: random.Random) -> list[int]:
    """Tokens drawn from what is allowed, until nothing can follow or an end token is drawn."""
    ids: list[int] = []
    while not matcher.is_complete and not (ids and ids[-1] in EOS):
        (some,) = allowed(matcher)
        ids.append(rng.choice(some))
        matcher.take(ids[-1])
    return ids


def tire(matcher: Matcher, num_tokens: int, seed: int) -> None:
    """Take so many tokens that reach many states of the lexer."""
    letters, rng = [TOKENIZER.encode(letter)[0] for letter in "ab"], random.Random(seed)
    for _ in range(num_tokens):
        assert allowed(matcher) != [[]], matcher.error
        matcher.take(rng.choice(letters))


def test_an_answer_comes_as_far_whatever_others_of_its_grammar_did(grammars: Grammars) -> None:
    """Copies share the lexer's states, of which there may be 50,000."""
    asked = structured("regex", "(a|b)*a(a|b){16}c", "")
    first = grammars.matcher(asked)
    tire(first, 8, 0)
    for seed in range(200):  # in the library a hundred are too many
        tire(grammars.matcher(asked), 200, seed)
    tire(first, 200, 7)
    forked = first.copy()
    alone = Grammars(TOKENIZER, VOCAB, EOS).matcher(asked)
    tire(alone, 8, 0)
    tire(alone, 200, 7)
    assert allowed(forked, first, alone) == 3 * allowed(alone)


# A mask now and then takes more work than one may, so that the library's lexer is of no more use.
LABORIOUS = "(.{1,30}[a-z]{2,50}){1,90}"


def test_what_takes_long_has_lexers_in_reserve_and_then_is_compiled_anew_for_the_next_request(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "RENEWABLE_SECONDS", 0.0)
    asked = structured("regex", f"{LABORIOUS}.", "")
    walk_on(grammars.matcher(asked), 140, random.Random(0))
    assert grammars.has(asked), "one was in reserve"
    monkeypatch.setattr(grammar, "NUM_IN_RESERVE", 0)
    asked = structured("regex", f"{LABORIOUS}..", "")
    with pytest.raises(AssertionError, match="too many expressions"):
        walk_on(grammars.matcher(asked), 140, random.Random(0))
    assert not grammars.has(asked)
    walk_on(grammars.matcher(asked), 40, random.Random(0))
    assert grammars.has(asked)


def test_a_mask_that_takes_too_much_ends_nothing_but_its_own_answer(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "RENEWED_FUEL", source.FUEL)
    asked = structured("regex", LABORIOUS, "")
    beside = grammars.matcher(asked)
    walk_on(beside, 30, random.Random(1))
    tired = grammars.matcher(asked)
    with pytest.raises(AssertionError, match="too many expressions"):
        walk_on(tired, 150, random.Random(0))
    assert allowed(grammars.matcher(asked)) == allowed(Grammars(TOKENIZER, VOCAB, EOS).matcher(asked))
    walk_on(beside, 20, random.Random(2))
    walk_on(grammars.matcher(asked), 50, random.Random(1))


def test_an_answer_that_goes_on_elsewhere_has_the_masks_it_would_have_had(grammars: Grammars) -> None:
    """Also where they took much work: more than the lexer has fuel for at once."""
    asked = structured("regex", LABORIOUS, "")
    first = grammars.matcher(asked)
    ids = walk_on(first, 140, random.Random(0))
    for length in (60, 100, 140):
        elsewhere = Grammars(TOKENIZER, VOCAB, EOS).matcher(asked)
        elsewhere.rehearse(ids[:length])
        for token_id in ids[:length]:
            elsewhere.take(token_id)
        walk_on(elsewhere, 3, random.Random(0))
    without_rehearsal = Grammars(TOKENIZER, VOCAB, EOS).matcher(asked)
    for token_id in ids:
        without_rehearsal.take(token_id)
    assert allowed(without_rehearsal) == allowed(first)


def test_as_many_are_allowed_as_could_be_taken_with_another_after_them(grammars: Grammars) -> None:
    """Not the one that completes an answer, nor what follows it."""
    rng = random.Random(5)
    for kind, value in (("json", SCHEMA), ("regex", "[a-z]{3}(de|f)?"), ("choice", ["yes", "no"])):
        matcher = grammars.matcher(structured(kind, value, ""))  # type: ignore[arg-type]
        ids = walk(matcher.copy(), rng)
        for length in range(len(ids)):
            assert matcher.num_allowed([*ids[length:], 40]) == len(ids) - length - 1
            wrong = next(token_id for token_id in range(VOCAB) if token_id not in allowed(matcher)[0])
            assert matcher.num_allowed([wrong, *ids]) == 0
            assert matcher.num_allowed([*ids[length:-1], wrong, wrong]) <= len(ids) - length
            assert matcher.num_allowed([VOCAB + 9]) == 0
            matcher.take(ids[length])


def test_guesses_do_not_change_how_far_an_answer_comes(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where trying them takes more work than the lexer has fuel for."""
    asked = structured("regex", f"{LABORIOUS}...", "")
    ids = walk_on(Grammars(TOKENIZER, VOCAB, EOS).matcher(asked), 140, random.Random(0))
    guessed, rng = grammars.matcher(asked), random.Random(3)
    for place, token_id in enumerate(ids):
        most = guessed.num_allowed(ids[place : place + 8])
        ahead = guessed.copy()
        for draft in ids[place : place + most]:
            ahead.take(draft)
            assert allowed(ahead) != [[]]
        guessed.num_allowed([rng.randrange(VOCAB) for _ in range(8)])
        assert token_id in allowed(guessed)[0]
        guessed.take(token_id)
    monkeypatch.setattr(grammar, "RENEWABLE_SECONDS", 0.0)
    slow = Grammars(TOKENIZER, VOCAB, EOS).matcher(asked)
    assert slow.num_allowed(ids[:4]) == 0, "its lexer could be used up for others"


def walk_on(matcher: Matcher, num_tokens: int, rng: random.Random) -> list[int]:
    """So many tokens drawn from what is allowed."""
    ids = []
    for _ in range(num_tokens):
        (some,) = allowed(matcher)
        assert some, matcher.error
        ids.append(rng.choice([token_id for token_id in some if token_id not in EOS]))
        matcher.take(ids[-1])
    return ids


def text_of(ids: list[int]) -> str:
    return TOKENIZER.decode(ids)


def test_every_walk_is_json_of_the_schema_and_has_the_same_masks_when_taken_again(grammars: Grammars) -> None:
    asked = structured("json", SCHEMA, "")
    texts = set()
    for seed in range(20):
        ids = walk(grammars.matcher(asked), random.Random(seed))
        jsonschema.validate(json.loads(text_of(ids)), SCHEMA)
        texts.add(text_of(ids))
        again, copied = grammars.matcher(asked), grammars.matcher(asked)
        for token_id in ids:  # one has seen no mask before its last token, the other is a copy each time
            again.take(token_id)
            (some,) = allowed(copied)
            assert token_id in some
            copied = copied.copy()
            copied.take(token_id)
        assert allowed(again) == allowed(copied)
    assert len(texts) == 20


@pytest.mark.parametrize(
    ("kind", "value", "texts"),
    [
        ("choice", ["yes", "no", 'a "quoted" one\n'], {"yes", "no", 'a "quoted" one\n'}),
        ("regex", "(ab|c)d?", {"ab", "abd", "c", "cd"}),
        ("grammar", 'root ::= "x" y | "z"\ny ::= "1" | "2"', {"x1", "x2", "z"}),
        ("grammar", 'start: "x" y | "z"\ny: "1" | "2"', {"x1", "x2", "z"}),
        ("json", {"enum": [1, "ü", None]}, {"1", '"ü"', "null"}),
    ],
)
def test_walks_reach_every_text_and_no_other(grammars: Grammars, kind: Any, value: Any, texts: set[str]) -> None:
    found = {text_of(walk(grammars.matcher(structured(kind, value, "")), random.Random(seed))) for seed in range(60)}
    assert found == texts


TAGS = {
    "triggers": ["<f", "##"],
    "structures": [
        {"begin": "<f=a>", "schema": {"enum": ["x"]}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "integer"}, "end": ""},
        {"begin": "##", "end": "."},
    ],
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Any text, <g=a> \n # and so on",
        '<f=a>"x"</f>',
        'It says <f=b>17 and then <f=a>"x"</f><f=a>"x"</f>. ##{"y": [1]}.',
    ],
)
def test_tagged_texts_that_are_allowed(grammars: Grammars, text: str) -> None:
    matcher = grammars.matcher(structured("structural_tag", TAGS, ""))
    for token_id in TOKENIZER.encode_word(text):
        assert token_id in allowed(matcher)[0]
        matcher.take(token_id)
    assert EOS[0] in allowed(matcher)[0] and not matcher.is_complete


@pytest.mark.parametrize("text", ["<f=c", '<f=a>"y', "<fa", "a <f=b>x", '<f=a>"x"</g', "##."])
def test_what_follows_a_trigger_is_of_its_form(grammars: Grammars, text: str) -> None:
    matcher = grammars.matcher(structured("structural_tag", TAGS, ""))
    with pytest.raises(InputProcessingError):
        for token_id in (TOKENIZER.encode_word(letter)[0] for letter in text):
            matcher.take(token_id)


def test_an_answer_may_not_end_inside_a_tag(grammars: Grammars) -> None:
    matcher = grammars.matcher(structured("structural_tag", TAGS, ""))
    for token_id in TOKENIZER.encode_word("see <f=a>"):
        matcher.take(token_id)
    assert not set(allowed(matcher)[0]) & set(EOS)


def test_an_end_token_is_allowed_where_the_grammar_may_end_and_kept_where_nothing_else_is_left(
    grammars: Grammars,
) -> None:
    a, b = (TOKENIZER.encode_word(letter)[0] for letter in "ab")
    matcher = grammars.matcher(structured("regex", "aa*b?", ""))
    assert not set(allowed(matcher)[0]) & set(EOS)
    matcher.take(a)
    assert set(EOS) < set(allowed(matcher)[0])
    assert not set(allowed(matcher, banned=EOS)[0]) & set(EOS)
    assert not matcher.is_complete
    matcher.take(b)
    assert matcher.is_complete
    assert allowed(matcher, banned=EOS) == [sorted(EOS)]


@pytest.mark.parametrize("alone_seconds", [0.0, 1e3], ids=["on threads", "alone"])
def test_rows_are_masked_each_by_its_own(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch, alone_seconds: float
) -> None:
    monkeypatch.setattr("engine.grammars.matcher.ALONE_SECONDS", alone_seconds)
    matchers = [grammars.matcher(structured("regex", letter, "")) for letter in "abc"]
    assert allowed(*matchers) == [[TOKENIZER.encode_word(letter)[0]] for letter in "abc"]


def test_a_token_that_does_not_fit_is_an_error_of_its_sequence_alone(grammars: Grammars) -> None:
    asked = structured("regex", "a", "")
    stuck, other = grammars.matcher(asked), grammars.matcher(asked)
    with pytest.raises(InputProcessingError, match="does not fit the structured output"):
        stuck.take(TOKENIZER.encode_word("b")[0])
    assert stuck.error
    assert allowed(stuck, other) == [[], [TOKENIZER.encode_word("a")[0]]]


def test_only_the_latest_grammars_are_kept(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.grammars.kept.MAX_KEPT", 2)
    kept = Grammars(TOKENIZER, VOCAB, EOS)
    for letter in "abac":
        kept.matcher(structured("regex", letter, ""))
    assert [asked.text for asked in kept._kept] == ["a", "c"]
