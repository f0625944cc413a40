"""The shape of the source: how long functions are, how deep, how much a module depends on, and what
tests it.
"""

import ast
import re

from tests.figures import (
    CROWDED,
    DEEP,
    LONG_FUNCTION,
    MANY_IMPORTS,
    ROOT,
    Function,
    folders,
    functions,
    length,
    modules_without_tests,
    nesting,
    num_imports,
    sources,
)
from tests.test_docs import is_there

PAGE = ROOT / "CONTRIBUTING.md"

TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in sources(ROOT)}


def test_functions_are_short_and_flat() -> None:
    found = functions(TREES)
    assert [name for name, node in found.items() if nesting(node) > DEEP] == []
    assert [name for name, node in found.items() if length(node) > LONG_FUNCTION and not is_kernel(node)] == []


def is_kernel(node: Function) -> bool:
    """Whether it is one launch on the device, where a function cannot be cut as one likes."""
    return any(ast.unparse(decorator).startswith(("triton.jit", "gluon.jit")) for decorator in node.decorator_list)


def test_modules_import_few_others() -> None:
    assert [path for path, tree in TREES.items() if num_imports(tree) > MANY_IMPORTS] == []


def test_folders_are_small() -> None:
    assert {room: number for room, number in folders(ROOT).items() if number > CROWDED} == {}


def test_what_is_too_much_is_seen() -> None:
    deep = ast.parse("def f():" + "".join(f"\n{' ' * depth}if a:" for depth in range(1, DEEP + 2)) + " pass")
    (node,) = functions({"a.py": deep}).values()
    assert nesting(node) == DEEP + 1
    long = ast.parse("def f():\n" + "    a()\n" * LONG_FUNCTION)
    (node,) = functions({"a.py": long}).values()
    assert length(node) == LONG_FUNCTION + 1
    assert num_imports(ast.parse("import os, sys\nfrom a import b, c\nfrom d import e")) == 4


def through_what() -> dict[str, list[str]]:
    """By module or folder, the tests that the page names for it. A name without a folder is in the
    folder of the one before.
    """
    table = PAGE.read_text(encoding="utf-8").partition("| modules | tested through |\n")[2].partition("\n\n")[0]
    found: dict[str, list[str]] = {}
    for row in table.splitlines()[1:]:
        modules, tests = (re.findall("`([^`]+)`", cell) for cell in row.strip("|").split("|"))
        folder = ""
        for module in modules:
            folder = module.rpartition("/")[0] if "/" in module else folder
            found[module if "/" in module else f"{folder}/{module}"] = tests
    return found


def test_every_module_has_a_test_of_its_name_or_an_importer_or_a_row_of_the_table() -> None:
    modules = [path.relative_to(ROOT).as_posix() for path in modules_without_tests(ROOT)]
    named = [f"{each}/" for each in through_what()]
    untested = [module for module in modules if not any(f"{module}/".startswith(each) for each in named)]
    assert untested == [], "give them a test, or name in CONTRIBUTING.md what tests them"


def test_the_tests_of_the_table_are_there() -> None:
    for module, tests in through_what().items():
        assert (ROOT / module).exists(), module
        assert tests, module
        assert [test for test in tests if not is_there(*test.partition(":")[::2])] == []
