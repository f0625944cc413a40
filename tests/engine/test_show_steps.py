"""The page about a step shows what its program prints today, but for times."""

import re

import pytest

from tests.documents.snippets import snippet
from tests.engine import show_steps

TIME = re.compile(r" *[\d.]+ (us|ms)")


def test_the_page_has_the_programs_output(capsys: pytest.CaptureFixture[str]) -> None:
    show_steps.main()
    printed = TIME.sub("", capsys.readouterr().out)
    shown = snippet("docs/a-step.md", "sequences: positions computed").text
    assert printed.strip() == TIME.sub("", shown).strip()
