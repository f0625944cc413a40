"""Finding, building and doing without the kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ops.cpu import build

ROOT = Path(__file__).parents[3]
REPORT = """
import torch, ops
reason = ops.unavailable_reason("cpu", torch.device("cpu"))
print(ops.select("auto", torch.device("cpu")).NAME, "|", reason)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of ops/ without compiled kernels."""
    shutil.copytree(ROOT / "ops", tmp_path / "ops", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def report(checkout: Path, **environment: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(checkout / "cache"), **environment}
    return subprocess.run(
        [sys.executable, "-c", REPORT], env=environment, cwd=checkout, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_without_a_compiler_the_reference_computes(checkout: Path) -> None:
    (checkout / "empty").mkdir()
    found = report(checkout, PATH=str(checkout / "empty"), CXX="", SQUADRON_CPU_ISA="")
    assert found == "reference | no C++ compiler (c++, g++, clang++ or $CXX)"


def test_a_level_that_the_processor_lacks_is_refused(checkout: Path) -> None:
    assert report(checkout, SQUADRON_CPU_ISA="mmx").startswith("reference | SQUADRON_CPU_ISA=mmx: this processor runs ")


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'In file x:' >&2\necho 'x.cpp:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(build.BuildError, match=r"compiler cannot compile the kernels: x.cpp:1: error: no such thing"):
        build.build_once("portable", tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(build.BuildError, match=r"cannot write the kernels to .*/file/cache: Not a directory"):
        build.build_once("portable", tmp_path / "file" / "cache")


def test_changed_sources_have_another_library(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SOURCES", checkout / "ops" / "cpu" / "src")
    names = [build.library_name("portable"), build.library_name("portable")]
    with open(checkout / "ops" / "cpu" / "src" / "tile.cpp", "a") as source:
        source.write("// changed\n")
    names.append(build.library_name("portable"))
    assert names[0] == names[1] != names[2]
    assert build.library_name("portable") != build.library_name("avx2")


def test_levels_are_best_first_and_end_with_portable() -> None:
    assert build.runnable_levels()[-1] == "portable"
    assert set(build.runnable_levels()) <= set(build.compilable_levels())
