"""Links of Markdown files, and the anchors that GitHub and the site make of headings."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.*?)\s*#*$", re.MULTILINE)
INLINE = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
HTML = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"", re.IGNORECASE)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # https:, mailto:, ...


def prose(text: str) -> str:
    """Without blocks of code and what is in backticks, whose brackets are no links."""
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", FENCED.sub("", text), flags=re.DOTALL)


def links(text: str) -> list[str]:
    """In order, those to other sites left out."""
    found = [link for kind in (INLINE, REFERENCE, HTML) for link in kind.findall(prose(text))]
    return [link for link in found if not OUTSIDE.match(link)]


def slug(heading: str) -> str:
    """GitHub's, of the heading as it is shown."""
    shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")


def anchors(text: str) -> set[str]:
    return set(_numbered(slug(heading) for heading in HEADING.findall(FENCED.sub("", text))))


def _numbered(slugs: Iterator[str]) -> Iterator[str]:
    """A heading that was there before gets a number."""
    seen: Counter[str] = Counter()
    for each in slugs:
        yield f"{each}-{seen[each]}" if seen[each] else each
        seen[each] += 1


def broken(page: Path) -> list[str]:
    """Its links that lead nowhere: to no file or folder, or to no heading of a page."""
    return [link for link in links(page.read_text(encoding="utf-8")) if not _leads_somewhere(page, link)]


def _leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target.read_text(encoding="utf-8")))
