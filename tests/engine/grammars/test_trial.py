"""A grammar's first compilation, in a process of its own: what it answers, and how it may end."""

import signal
from collections.abc import Iterator

import pytest

from engine.errors import InvalidRequest
from engine.grammars import trial
from engine.grammars.interface import GrammarTakesLong
from engine.grammars.trial import TrialProcess
from engine.structured_outputs import INVALID_SCHEMA, TOO_COMPLEX, structured

ALL_LETTERS = {"allOf": [{"type": "string", "pattern": f".*{letter}"} for letter in "abcdefghijklmnopqrstuvwxyz"]}


@pytest.fixture(scope="module")
def trials() -> Iterator[TrialProcess]:
    trials = TrialProcess()
    yield trials
    trials.close()


def test_a_grammar_comes_back_as_the_library_takes_it(trials: TrialProcess) -> None:
    source = trials.source(structured("choice", ["yes", "no"], "guided_choice"))
    assert source.startswith('start: "yes" | "no"')


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [
        ("regex", "(a", "invalid_value"),
        ("json", {"type": "strin"}, INVALID_SCHEMA),
        ("json", ALL_LETTERS, TOO_COMPLEX),
    ],
    ids=["no regex", "no schema", "beyond the limits"],
)
def test_what_is_refused_names_the_field(trials: TrialProcess, kind: str, value: object, code: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^the field ") as refused:
        trials.source(structured(kind, value, "the field"))
    assert (refused.value.param, refused.value.code) == ("the field", code)


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('answer ::= "a"', "No 'root' rule found"),
        ("root ::= answer", "Rule 'answer' not found"),
        ('root ::= a-b a_b\na-b ::= "a"\na_b ::= "b"', "Rule 'A_B' already exists"),
        ('root ::= "a"\nroot ::= "b"', "Rule 'root' already exists"),
        ('root ::= a-b\n  a-b\n ::= "a"\na-b::= "b"', "Rule 'a-b' already exists"),
        ("root ::= [\\", "Unexpected end of input"),
    ],
)
def test_a_gbnf_grammar_that_is_wrong_is_told_why(trials: TrialProcess, grammar: str, why: str) -> None:
    trials.source(structured("regex", "[0-9]", "a"))
    process = trials._process
    with pytest.raises(InvalidRequest, match=f"^the field cannot be compiled: {why}$") as refused:
        trials.source(structured("grammar", grammar, "the field"))
    assert refused.value.code == "invalid_value"
    assert trials._process is process, "it goes on"


def test_the_next_trial_outlives_the_last_ones_process(trials: TrialProcess) -> None:
    with pytest.raises(InvalidRequest, match="takes more than 1 s of computing to compile"):
        trials.source(structured("json", ALL_LETTERS, "a"))
    process = trials._process
    assert process is not None and process.poll() is None, "the next one, before anything is asked of it"
    trials.source(structured("regex", "[0-9]", "b"))
    assert trials._process is process
    process.send_signal(signal.SIGKILL)
    process.wait()
    trials.source(structured("regex", "[0-9]", "b"))
    assert trials._process is not process


def test_a_first_share_is_all_that_is_taken_of_others_time(trials: TrialProcess) -> None:
    asked = structured("json", ALL_LETTERS, "a")
    with pytest.raises(GrammarTakesLong):
        trials.source(asked, first_seconds=0.1)
    assert trials.source(structured("regex", "[0-9]", "b"), first_seconds=0.1)


def test_what_was_accepted_once_is_not_refused_for_its_time(
    trials: TrialProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other engine's processor may have been a little faster."""
    monkeypatch.setattr(trial, "MAX_CPU_SECONDS", 0)
    asked = structured("json", {"allOf": ALL_LETTERS["allOf"][:17]}, "a")
    with pytest.raises(InvalidRequest, match="takes more than 0 s of computing"):
        trials.source(asked)
    with pytest.raises(InvalidRequest, match="Unable to determine if regex is empty"):
        trials.source(asked, was_accepted=True)  # to its end


def test_closing_ends_the_process_and_may_be_repeated() -> None:
    trials = TrialProcess()
    trials.close()
    trials.source(structured("regex", "a", "r"))
    process = trials._process
    assert process is not None
    trials.close()
    trials.close()
    assert process.returncode == -signal.SIGKILL
