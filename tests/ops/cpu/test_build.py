"""Building the kernels: each level, of these sources, once."""

import shutil
from pathlib import Path

import pytest

from ops.cpu import build


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


def test_changed_sources_have_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = shutil.copytree(build.SOURCES, tmp_path / "src")
    monkeypatch.setattr(build, "SOURCES", sources)
    names = [build.library_name("portable"), build.library_name("portable")]
    with open(sources / "tile.cpp", "a") as source:
        source.write("// changed\n")
    names.append(build.library_name("portable"))
    assert names[0] == names[1] != names[2]
    assert build.library_name("portable") != build.library_name("avx2")


def test_levels_are_best_first_and_end_with_portable() -> None:
    assert build.runnable_levels()[-1] == "portable"
    assert set(build.runnable_levels()) <= set(build.compilable_levels())
