"""Every link and anchor of every Markdown file leads somewhere, and the README leads to every
document.
"""

import re
from pathlib import Path

import pytest

from tests.documents.links import anchors, broken, links
from tests.documents.snippets import ROOT

PAGES = sorted(path for path in ROOT.rglob("*.md") if not re.search(r"^build/|(^|/)\.", str(path.relative_to(ROOT))))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached, left = set(), {ROOT / "README.md"}
    while left:
        page = left.pop()
        reached.add(page)
        paths = {link.partition("#")[0] for link in links(page.read_text(encoding="utf-8"))}
        found = {(page.parent / path).resolve() for path in paths if path}
        found |= {path / "README.md" for path in found if (path / "README.md").exists()}
        left |= {path for path in found if path.suffix == ".md"} - reached
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


def test_what_leads_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `word`\n# One word\n[a](page.md#one-word-1) [b](#one-word) [c](#two) `[d](gone.md)`\n"
        '[e](gone.md "title")\n[f]: lost.md\n<img src="gone.png"> [g](https://example.com)\n'
        "```\n# no heading [h](gone.md)\n```\n[i](#no-heading-hgonemd) [j](\nlate.md)\n",
        encoding="utf-8",
    )
    assert broken(page) == ["#two", "gone.md", "#no-heading-hgonemd", "late.md", "lost.md", "gone.png"]
    assert anchors("# The `GET /debug/view` route\n## A – b\n") == {"the-get-debugview-route", "a--b"}
