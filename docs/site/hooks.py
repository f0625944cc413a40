"""What mkdocs reads: the pages of mkdocs.yml and the files that they link to, at the paths that
they have in the repository, so that links lead to the same places as on GitHub.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\[[^\]]*\])\(([^)\s]+)\)")
SHOWN = (".png", ".yaml", ".yml", ".json", ".md", ".py", ".sh")


def on_config(config: Any) -> Any:
    config["mdx_configs"]["toc"] = {"slugify": slug, "permalink": False}
    return config


def slug(heading: str, separator: str) -> str:
    """GitHub's anchors, which the pages name."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def on_files(files: Files, config: Any) -> Files:
    pages = [path for group in config["nav"] for titles in group.values() for page in titles for path in page.values()]
    found = dict.fromkeys(pages)
    for page in pages:
        for _, link in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            target = target_of(page, link)
            if target is not None and target.is_file() and target.suffix in SHOWN:
                found[target.relative_to(ROOT).as_posix()] = None
    ours = [File(path, str(ROOT), config["site_dir"], config["use_directory_urls"]) for path in found]
    of_theme = [file for file in files if file.src_dir != config["docs_dir"] or file.src_uri in config["extra_css"]]
    return Files([*of_theme, *ours])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Folders are no pages: a link to one leads to its README, or is none. Boxes of lists are
    signs, since mkdocs knows none.
    """

    def changed(link: re.Match[str]) -> str:
        target = target_of(page.file.src_uri, link[2])
        if target is None or not target.is_dir():
            return link[0]
        if (target / "README.md").exists():
            return f"{link[1]}({link[2].rstrip('/')}/README.md)"
        return link[1][1:-1]

    return LINK.sub(changed, markdown).replace("- [ ] ", "- ☐ ")


def target_of(page: str, link: str) -> Path | None:
    """In the repository; None for other sites and for anchors of the page itself."""
    path = link.partition("#")[0]
    if not path or re.match(r"[a-z]+:", path):
        return None
    return (ROOT / page).parent.joinpath(path).resolve()
