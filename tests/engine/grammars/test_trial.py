"""A grammar's first compilation, in a process of its own: what it answers, and how it may end."""

import signal
from collections.abc import Iterator

import pytest

from engine.errors import InvalidRequest
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


def test_the_next_trial_outlives_the_last_ones_process(trials: TrialProcess) -> None:
    with pytest.raises(InvalidRequest, match="takes more than 1 s of computing to compile"):
        trials.source(structured("json", ALL_LETTERS, "a"))
    assert trials._process is None, "that one was killed by the kernel"
    trials.source(structured("regex", "[0-9]", "b"))
    process = trials._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    trials.source(structured("regex", "[0-9]", "b"))
    assert trials._process is not process


def test_closing_ends_the_process_and_may_be_repeated() -> None:
    trials = TrialProcess()
    trials.close()
    trials.source(structured("regex", "a", "r"))
    process = trials._process
    assert process is not None
    trials.close()
    trials.close()
    assert process.returncode == -signal.SIGKILL
