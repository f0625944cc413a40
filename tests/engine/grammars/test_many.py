"""A short form of the command, and that it sees what is wrong."""

import pytest

from engine.outputs import CompletionOutput
from tests.engine.grammars.many import Form, ask, what_is_wrong


def test_answers_that_stop_are_of_their_form() -> None:
    ends, wrong = ask(60)
    assert wrong == []
    assert ends["stop"] > 50


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"json": {"type": "integer"}}, '"a"'),
        ({"json": {"type": "integer"}}, "1,"),
        ({"json_object": True}, "[]"),
        ({"regex": "a+"}, "aab"),
        ({"choice": ["a", "b"]}, "c"),
    ],
)
def test_what_is_wrong_is_seen(form: Form, text: str) -> None:
    assert what_is_wrong(form, CompletionOutput(0, text, [])) is not None
