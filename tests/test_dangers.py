"""Nothing that comes from outside is executed: read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for name in ("cluster", "engine", "ops", "parallel") for path in (ROOT / name).rglob("*.py"))
# Calls of, and classes on, what executes what it is given, or loads what may do so.
DANGEROUS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "runpy.run_path"),
    *(f"{module}.{name}" for module in ("pickle", "cloudpickle", "dill", "marshal") for name in ("load", "loads")),
    *("pickle.Unpickler", "shelve.open", "joblib.load", "torch.load", "torch.hub.load"),
    *("yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all"),
}
KEYWORDS = {"trust_remote_code", "allow_pickle", "shell"}  # arguments that must not be there, or be False
ALLOWED = {
    # The command that the user gave, to break something with.
    ("cluster/chaos/faults.py", "subprocess.run(shell)"),
    # Of a safe loader's own kind, which refuses keys that are there twice.
    ("engine/config/strict_yaml.py", "yaml.load"),
    # A socket pair with the process that it has started; the child reads what its parent has sent.
    ("engine/text/template_process.py", "pickle.loads"),
    # It makes objects of the few classes that a request consists of, and refuses all others by
    # name. Senders know the listener's token.
    ("cluster/replica/delta_channel/packed_calls.py", "pickle.Unpickler"),
}


def full_names(tree: ast.AST) -> dict[str, str]:
    """What imported names stand for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def full_name(node: ast.expr, names: dict[str, str]) -> str:
    """Of what is called or inherited from."""
    first, dot, rest = ast.unparse(node).partition(".")
    return names.get(first, first) + dot + rest


def dangers(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    names = full_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (base for base in (full_name(each, names) for each in node.bases) if base in DANGEROUS)
        if isinstance(node, ast.Call):
            called = full_name(node.func, names)
            if called in DANGEROUS:
                yield called
            for keyword in node.keywords:
                is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in KEYWORDS and not is_off:
                    yield f"{called}({keyword.arg})"


def test_nothing_from_outside_is_executed() -> None:
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
    found = {(path, danger) for path, source in sources.items() for danger in dangers(source)}
    assert found == ALLOWED


@pytest.mark.parametrize(
    ("source", "danger"),
    [
        ("eval(text)", "eval"),
        ("import pickle\npickle.loads(data)", "pickle.loads"),
        ("import pickle as p\np.loads(data)", "pickle.loads"),
        ("from pickle import loads\nloads(data)", "pickle.loads"),
        ("from torch import load as read\nread(path)", "torch.load"),
        ("AutoModel.from_pretrained(path, trust_remote_code=True)", "AutoModel.from_pretrained(trust_remote_code)"),
        ("AutoModel.from_pretrained(path, trust_remote_code=asked)", "AutoModel.from_pretrained(trust_remote_code)"),
        ("import pickle\nclass Reader(pickle.Unpickler): ...", "pickle.Unpickler"),
        ("from pickle import Unpickler as Base\nclass Reader(Base): ...", "pickle.Unpickler"),
        ("import subprocess\nsubprocess.run(line, shell=True)", "subprocess.run(shell)"),
    ],
)
def test_the_scan_finds(source: str, danger: str) -> None:
    assert list(dangers(source)) == [danger]


def test_the_scan_lets_pass() -> None:
    assert not list(dangers("import re, yaml\nre.compile(x)\nyaml.safe_load(y)\nmodel.eval()\nread(shell=False)"))


def test_what_is_allowed_is_there() -> None:
    for name, danger in ALLOWED:
        assert danger in dangers((ROOT / name).read_text(encoding="utf-8"))
