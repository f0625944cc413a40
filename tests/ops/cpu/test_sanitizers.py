"""sanitized.cpp, which runs every kernel in arrays of exact length, under the address and
undefined-behaviour sanitizers.
"""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ops.cpu import build, library

FLAGS = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{build.SOURCES}"]


def has_sanitizers(folder: Path) -> bool:
    (folder / "empty.cpp").write_text("int main() {}\n")
    command = [build.find_compiler(), *FLAGS, "-fopenmp", str(folder / "empty.cpp"), "-o", str(folder / "empty")]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.long  # takes a minute of two cores
def test_every_kernel(tmp_path: Path) -> None:
    try:
        compiler = build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    if not has_sanitizers(tmp_path):
        pytest.skip(f"{compiler} has no sanitizers here")
    level = library.isa()
    flags = [*build.COMMON_FLAGS, *build.LEVELS[level].compiler_flags, *FLAGS]
    sources = [*sorted(build.SOURCES.glob("*.cpp")), Path(__file__).with_name("sanitized.cpp")]
    objects = [str(tmp_path / f"{source.stem}.o") for source in sources]

    def compile(source: Path, target: str) -> None:
        subprocess.run([compiler, *flags, "-c", str(source), "-o", target], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile, sources, objects))
    subprocess.run([compiler, *flags, *objects, "-o", str(tmp_path / "sanitized")], check=True)
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # quicker where cores are few
    finished = subprocess.run([str(tmp_path / "sanitized")], capture_output=True, text=True, env=environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr[:5000]
    print(finished.stdout)
