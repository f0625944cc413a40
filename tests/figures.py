"""`python -m tests.figures [FOLDER]`: what the shape of a tree's source is, in figures that can be
held against another's.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
PACKAGES = ("cluster", "engine", "ops", "parallel")
BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match)
LONG_LINE, LONG_FUNCTION, DEEP, MANY_IMPORTS, CROWDED = 120, 50, 4, 12, 12

Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(folder: Path) -> None:
    files = {path: path.read_text(encoding="utf-8") for path in sources(folder)}
    trees = {path: ast.parse(text) for path, text in files.items()}
    lines = [line for text in files.values() for line in text.splitlines()]
    named = {path.relative_to(folder).as_posix(): tree for path, tree in trees.items()}
    found = functions(named)
    lengths = {name: length(node) for name, node in found.items()}
    depths = {name: nesting(node) for name, node in found.items()}
    imports = {name: num_imports(tree) for name, tree in named.items()}
    sizes = {str(path.relative_to(folder)): len(text.splitlines()) for path, text in files.items()}
    comments = sum(num_comments(text) for text in files.values())
    print(f"files                     {len(files)}, of {len(lines)} lines, median {median(sizes.values()):.0f}")
    print(f"comments a hundred lines  {100 * comments / len(lines):.1f}")
    print(f"lines over {LONG_LINE} columns    {sum(len(line) > LONG_LINE for line in lines)}")
    print(f"functions over {LONG_FUNCTION} lines   {most(lengths, LONG_FUNCTION)}")
    print(f"functions nested over {DEEP}   {most(depths, DEEP)}")
    print(f"modules with over {MANY_IMPORTS} imports  {most(imports, MANY_IMPORTS)}")
    print(f"folders with over {CROWDED} files    {most(folders(folder), CROWDED)}")
    print(f"longest files             {most(sizes, 250)}")
    print(f"files that name cache_salt  {len(files_that_name('cache_salt', folder))}")
    print_untested(folder)


def print_untested(folder: Path) -> None:
    named = modules_without_tests(folder, by_import=False)
    print(f"modules that run something            {len(running_modules(folder))}")
    print(f"  without a test of their name        {by_package(named, folder)}")
    print(f"  of these, that no test imports      {by_package(modules_without_tests(folder), folder)}")


def modules_without_tests(folder: Path, *, by_import: bool = True) -> list[Path]:
    """Those whose test cannot be found by its name and, with `by_import`, that no test imports
    either: these are tested through what uses them, if at all.
    """
    unnamed = [path for path in running_modules(folder) if not any(path.exists() for path in tests_of(path, folder))]
    if not by_import:
        return unnamed
    tests = [ast.parse(path.read_text(encoding="utf-8")) for path in (folder / "tests").rglob("*.py")]
    known = {name for tree in tests for name in imported(tree)}
    return [path for path in unnamed if ".".join(path.relative_to(folder).with_suffix("").parts) not in known]


def running_modules(folder: Path) -> list[Path]:
    found = [path for path in sources(folder) if path.name != "__init__.py"]
    return [path for path in found if runs(ast.parse(path.read_text(encoding="utf-8")))]


def tests_of(path: Path, folder: Path) -> list[Path]:
    """Where a module's test may be: in the folder that mirrors its own, or above that, where one
    test runs on all sources or kinds of a thing. One that runs on all backends of `ops` is in the
    room that all of them have.
    """
    mirrored = folder / "tests" / path.relative_to(folder).parent
    above = [parent for parent in mirrored.parents if (folder / "tests") in parent.parents]
    if mirrored.parts[-3:-2] == ("ops",):
        above.append(mirrored.parents[1] / mirrored.name)
    return [parent / f"test_{path.stem}.py" for parent in (mirrored, *above)]


def runs(tree: ast.AST) -> bool:
    """Whether there is a function, beside those of protocols, which only say what others have."""
    said = {
        method
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
        for method in ast.walk(node)
    }
    return any(isinstance(node, Function) and node not in said for node in ast.walk(tree))


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules, and what may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def by_package(paths: list[Path], folder: Path) -> str:
    names = [path.relative_to(folder).parts[0] for path in paths]
    return f"{len(paths)}: " + ", ".join(f"{name} {names.count(name)}" for name in PACKAGES)


def sources(folder: Path) -> list[Path]:
    return [path for package in PACKAGES for path in (folder / package).rglob("*.py")]


def folders(root: Path) -> dict[str, int]:
    """How many modules are in each folder of the packages, not counting those in folders of it."""
    found = [path.parent for path in sources(root)]
    return {path.relative_to(root).as_posix(): found.count(path) for path in found}


def functions(trees: dict[str, ast.Module]) -> dict[str, Function]:
    """By file, line and name."""
    return {
        f"{path}:{node.lineno}:{node.name}": node
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    }


def length(node: Function) -> int:
    """Lines, those of its decorators not counted."""
    return (node.end_lineno or 0) - node.lineno + 1


def files_that_name(name: str, folder: Path = ROOT) -> set[str]:
    """Source files in which it is a variable, a field, an argument or a keyword."""
    return {
        path.relative_to(folder).as_posix() for path in sources(folder) if name in names(ast.parse(path.read_text()))
    }


def names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(name) | ast.Attribute(attr=name) | ast.arg(name) | ast.keyword(str(name)):
                yield name


def nesting(node: ast.AST) -> int:
    """How many blocks lie in each other at most; functions in functions count on their own, `elif`
    is no deeper than `if`.
    """
    return max((nesting(child) + isinstance(child, BLOCKS) for child in inner(node)), default=0)


def inner(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda):
            continue
        if isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]:
            yield from ast.iter_child_nodes(child)
        else:
            yield child


def num_imports(tree: ast.AST) -> int:
    """Modules named; `from a import b, c` is one."""
    return sum(
        len(node.names) if isinstance(node, ast.Import) else 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def num_comments(text: str) -> int:
    return sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline))


def most(values: dict[str, int], limit: int) -> str:
    """How many are over the limit, and the three largest of them."""
    over = sorted((item for item in values.items() if item[1] > limit), key=lambda item: -item[1])
    named = ", ".join(f"{name} ({value})" for name, value in over[:3])
    return f"{len(over)}" + (f": {named}" if named else "")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
