"""What the page about troubleshooting quotes is what the sources say."""

import re

from tests.documents.messages import GAP, texts
from tests.documents.snippets import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
SHORTEST = 20  # characters of a message without its values


def quoted() -> list[str]:
    """In the column "it says" of each table."""
    found, column = [], 0
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            column = -1
        elif "it says" in cells:
            column = cells.index("it says")
        elif column >= 0:
            found += re.findall(r"`([^`]+)`", cells[column].partition(" (of `squadron doctor`)")[0])
    return found


def test_each_message_is_in_the_sources() -> None:
    said = texts()
    assert len(quoted()) > 20
    assert [message for message in quoted() if not any(message in text for text in said)] == []


def test_each_message_is_long_enough_to_be_one() -> None:
    assert [message for message in quoted() if len(message.replace(GAP, "")) < SHORTEST] == []
