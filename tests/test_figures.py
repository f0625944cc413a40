"""The shape of the source: how long functions are, how deep, and how much a module depends on."""

import ast

import pytest

from tests.figures import (
    DEEP,
    LONG_FUNCTION,
    MANY_IMPORTS,
    ROOT,
    Function,
    functions,
    length,
    nesting,
    num_imports,
    sources,
)

TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in sources(ROOT)}


@pytest.mark.parametrize("path", TREES)
def test_functions_are_short_and_flat(path: str) -> None:
    found = functions({path: TREES[path]})
    assert [name for name, node in found.items() if nesting(node) > DEEP] == []
    assert [name for name, node in found.items() if length(node) > LONG_FUNCTION and not is_kernel(node)] == []


def is_kernel(node: Function) -> bool:
    """Whether it is one launch on the device, where a function cannot be cut as one likes."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_modules_import_few_others() -> None:
    assert [path for path, tree in TREES.items() if num_imports(tree) > MANY_IMPORTS] == []


def test_what_is_too_much_is_seen() -> None:
    deep = ast.parse("def f():" + "".join(f"\n{' ' * depth}if a:" for depth in range(1, DEEP + 2)) + " pass")
    (node,) = functions({"a.py": deep}).values()
    assert nesting(node) == DEEP + 1
    long = ast.parse("def f():\n" + "    a()\n" * LONG_FUNCTION)
    (node,) = functions({"a.py": long}).values()
    assert length(node) == LONG_FUNCTION + 1
    assert num_imports(ast.parse("import os, sys\nfrom a import b, c\nfrom d import e")) == 4
