"""Whether a prompt ends inside the model's reasoning."""

import pytest

from engine.text.reasoning import ends_inside

BEGIN, END, LINE, WORD = 1, 2, 3, 4


@pytest.mark.parametrize(
    ("prompt", "is_inside"),
    [
        ([], False),
        ([WORD], False),
        ([WORD, BEGIN], True),
        ([WORD, BEGIN, LINE], True),
        ([BEGIN, LINE, END], False),
        ([END, BEGIN], True),
        ([BEGIN, WORD, WORD, WORD], False),  # somebody's text, long before the end
    ],
)
def test_a_prompt_ends_inside(prompt: list[int], is_inside: bool) -> None:
    assert ends_inside(prompt, BEGIN, END) is is_inside
