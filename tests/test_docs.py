"""The documents: what they name exists, their commands have the options shown. Their code and links
are in tests/documents.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cli import _parser

ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"  # also names what was removed
PAGES = sorted(
    path for folder in (".", "docs", "configs/cluster", "configs/demo") for path in (ROOT / folder).glob("*.md")
)
COLUMNS = 100
FOLDERS = ("cluster", "configs", "docs", "engine", "ops", "parallel", "tests")
# A file, a folder or a module of ours; behind a colon the name of something in it.
NAMED = re.compile(rf"((?:{'|'.join(FOLDERS)})(?:/[\w.*-]+)*/?)(?::([\w.]+))?")
RUN = re.compile(r"python -m ((?:tests|cluster)\.[\w.]+)")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def in_backticks(page: Path) -> Iterator[str]:
    for text in re.findall(r"`([^`]+)`", prose(page)):
        yield " ".join(text.split())


def defined(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    """Functions, classes, their methods and names that are assigned, dotted."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            yield from defined(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


def is_there(path: str, symbol: str) -> bool:
    """`path` may leave out .py, and have wildcards."""
    found = list(ROOT.glob(path.rstrip("/"))) or list(ROOT.glob(f"{path}.py"))
    if not symbol:
        return bool(found)
    return any(symbol in defined(ast.parse(file.read_text(encoding="utf-8"))) for file in found if file.is_file())


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every `squadron COMMAND ...` of the page."""
    code = [
        line.removeprefix("$ ")
        for block in FENCED.findall(page.read_text(encoding="utf-8"))
        for line in block[1].splitlines()
    ]
    for line in [*code, *in_backticks(page)]:
        if line.startswith("squadron ") and ":" not in line.split()[1]:
            yield shlex.split(line, comments=True)[1:]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_prose_is_wrapped(page: Path) -> None:
    lines = [line for line in prose(page).splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > COLUMNS] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != CHANGELOG], ids=relative)
def test_what_is_named_is_there(page: Path) -> None:
    named = [match.groups("") for text in in_backticks(page) if (match := NAMED.fullmatch(text))]
    assert [f"{path}:{symbol}" for path, symbol in named if not is_there(path, symbol)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != CHANGELOG], ids=relative)
def test_modules_that_are_to_be_run_are_there(page: Path) -> None:
    modules = set(RUN.findall(page.read_text(encoding="utf-8")))
    assert {module for module in modules if not can_be_run(module)} == set()


def can_be_run(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_what_is_not_there_is_seen() -> None:
    assert can_be_run("tests.benchmarks")
    assert not can_be_run("tests.benchmarks.ingress")
    assert is_there("engine/batch/batch", "build_request")
    assert is_there("tests/test_docs.py", "is_there")
    assert not is_there("engine/batch/batch", "build_nothing")
    assert not is_there("engine/batches", "")


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_options_of_commands_are_there(page: Path) -> None:
    subparsers = next(action for action in _parser()._actions if action.dest == "command").choices
    assert subparsers is not None
    unknown = []
    for command, *arguments in commands(page):
        parser = dict(subparsers)[command] if command in subparsers else None
        options = [argument.partition("=")[0] for argument in arguments if argument.startswith("-")]
        unknown += [f"{command} {option}" for option in options if parser is None or option not in parser.format_help()]
    assert unknown == []
