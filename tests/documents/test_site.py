"""`make docs`: every document is in the site, which is built strictly and needs no other site."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.documents.snippets import ROOT
from tests.documents.test_links import PAGES

MKDOCS = ROOT / ".venv" / "mkdocs" / "bin" / "mkdocs"
LOADED = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"([^\"]*)\"|<link\b[^>]*\bhref=\"([^\"]*)\"")


def test_every_document_is_in_the_site() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = [path for group in config["nav"] for pages in group.values() for page in pages for path in page.values()]
    assert sorted(named) == [page.relative_to(ROOT).as_posix() for page in PAGES]


@pytest.mark.skipif(not MKDOCS.exists(), reason="mkdocs is not installed; `make mkdocs` installs it")
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [str(MKDOCS), "--quiet", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'id="keys"' in (site / "docs" / "security.html").read_text(encoding="utf-8")
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)  # the search's page is one more
    loaded = {link for page in pages for found in LOADED.findall(page.read_text(encoding="utf-8")) for link in found}
    assert [link for link in loaded if re.match(r"(https?:)?//", link)] == []
