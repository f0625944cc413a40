"""Figures of GPUs in the documents are those of the reports."""

import re
from pathlib import Path

import pytest

pytest.importorskip("triton")
from tests.benchmarks.gpu.document import tables

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpus.md"
MEASURED = re.compile(
    r"<!-- measured: python -m tests\.benchmarks\.gpu\.document -->\n\n(.*?)\n\n<!-- end -->", re.DOTALL
)


def test_what_was_measured_is_what_the_reports_say() -> None:
    (told,) = MEASURED.findall(PAGE.read_text(encoding="utf-8"))
    assert told.splitlines() == list(tables())
