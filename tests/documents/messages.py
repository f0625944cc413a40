"""The texts of the sources, docstrings left out, with `...` for each value that is put in."""

import ast
from collections.abc import Iterator

from tests.documents.snippets import ROOT

PACKAGES = ("cluster", "engine", "ops", "parallel")
GAP = "..."


def texts() -> set[str]:
    trees = (
        ast.parse(path.read_text(encoding="utf-8")) for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    )
    return {text for tree in trees for node in ast.walk(tree) for text in _texts_of(node)}


def _texts_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Expr(ast.Constant() as docstring):
            docstring.value = None
        case ast.Constant(str() as text):
            yield text
        case ast.JoinedStr(parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in parts)
