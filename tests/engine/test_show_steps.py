"""The page about a step shows what its program prints today, but for times."""

import re
from pathlib import Path

import pytest

from tests.engine import show_steps

PAGE = Path(__file__).parents[2] / "docs" / "a-step.md"
TIME = re.compile(r" *[\d.]+ (us|ms)")


def test_the_page_has_the_programs_output(capsys: pytest.CaptureFixture[str]) -> None:
    show_steps.main()
    printed = TIME.sub("", capsys.readouterr().out)
    shown = PAGE.read_text(encoding="utf-8").split("```")[1]
    assert printed.strip() == TIME.sub("", shown).strip()
