"""What the documents show in fenced blocks: each command of a shell's block by itself, every other
block whole. A test takes one by `snippet("docs/api.md", "a part of it")`, with literals, so that
`tests/documents/test_snippets.py` finds those that no test takes.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# CONTRIBUTING.md has a test of its own: tests/test_contributing.py.
PAGES = sorted(
    path for folder in ("docs", "configs") for path in (ROOT / folder).rglob("*.md") if path.name != "CONTRIBUTING.md"
)
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *PAGES]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LANGUAGES = ("bash", "console", "ini", "json", "python", "text", "yaml")


class Snippet(NamedTuple):
    page: str
    line: int  # of the page, on which its block begins
    language: str
    text: str  # of a command without the prompt
    output: str = ""  # of a console's command: what is shown below it

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text.splitlines()[0]}"


def snippets(text: str, page: str) -> Iterator[Snippet]:
    for block in FENCED.finditer(text):
        _, language, code = block.groups()
        line = text.count("\n", 0, block.start()) + 1
        if language == "bash":
            yield from (Snippet(page, line, language, command) for command in _commands(code))
        elif language == "console":
            yield from (Snippet(page, line, language, *each) for each in _with_output(code))
        else:
            yield Snippet(page, line, language, code.rstrip("\n"))


def _commands(code: str) -> list[str]:
    """Lines, those that a backslash continues joined."""
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    return re.sub(r"\\\n", "\\\\\0", "\n".join(lines)).replace("\n", "\1").replace("\0", "\n").split("\1")


def _with_output(code: str) -> Iterator[tuple[str, str]]:
    for shown in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, output = shown.partition("\n")
        yield command, output.rstrip("\n")


def all_snippets() -> list[Snippet]:
    return [
        each for page in PAGES for each in snippets(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())
    ]


def snippet(page: str, part: str) -> Snippet:
    """The only one of the page that has this in it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [each for each in snippets(text, page) if part in each.text]
    assert len(found) == 1, f"{page} has {len(found)} snippets with {part!r}: {', '.join(map(str, found))}"
    return found[0]


def taken() -> set[tuple[str, str]]:
    """The arguments of `snippet` anywhere in the tests."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    trees = [ast.parse(source) for source in sources if "snippet(" in source]
    return {found for tree in trees for node in ast.walk(tree) if (found := _taken(node)) is not None}


def _taken(node: ast.AST) -> tuple[str, str] | None:
    match node:
        case ast.Call(
            func=ast.Name("snippet"), args=[ast.Constant(str() as page), ast.Constant(str() as part)], keywords=[]
        ):
            return page, part
    return None
