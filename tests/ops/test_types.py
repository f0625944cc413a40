"""mypy lets functions of `ops.kernels` go without types, for those that Triton compiles: here, that
all others have them.
"""

import ast
from pathlib import Path

import pytest

KERNELS = sorted((Path(__file__).parents[2] / "ops" / "kernels").rglob("*.py"))


def untyped(source: str) -> list[str]:
    """Functions of Python that lack the type of an argument or of their result."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return [each.name for each in functions if not is_compiled(each) and not is_typed(each)]


def is_compiled(function: ast.FunctionDef) -> bool:
    compilers = ("triton.jit", "gluon.jit")
    return any(ast.unparse(decorator).startswith(compilers) for decorator in function.decorator_list)


def is_typed(function: ast.FunctionDef) -> bool:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named = [argument for argument in named if argument.arg != "self"]
    return function.returns is not None and all(argument.annotation is not None for argument in named)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_python_runs_is_typed(path: Path) -> None:
    assert untyped(path.read_text(encoding="utf-8")) == []


def test_what_is_not_typed_is_seen() -> None:
    assert untyped("def f(x):\n    pass") == untyped("def f(x: int):\n    pass") == ["f"]
    assert untyped("class C:\n    def f(self) -> int:\n        pass\n    def g(self):\n        pass") == ["g"]
    for compiler in ("triton.jit", "gluon.jit(do_not_specialize=[])"):
        assert untyped(f"@{compiler}\ndef f(x):\n    pass\n\ndef g(x: int) -> int:\n    return x") == []
