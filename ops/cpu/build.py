"""Compiles the kernels: one shared library for each instruction-set level, from the same sources.

Needs the standard library and a C++ compiler only, so that setup.py can run it too. A library's
name has a digest of the sources and of the compiler's flags, so that a library of other sources is
never loaded.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "src"
COMMON_FLAGS = (
    "-std=c++17 -O3 -ffp-contract=off -fopenmp -fPIC -fvisibility=hidden -Wall -Wextra -Wno-psabi"
    " -Wno-uninitialized -Wno-maybe-uninitialized"  # GCC 12 warns about its own headers
).split()


@dataclass(frozen=True)
class Level:
    """An instruction set that the sources are compiled for."""

    cpu_flags: frozenset[str]  # the flags that it needs, as in /proc/cpuinfo
    compiler_flags: tuple[str, ...]


def _level(cpu_flags: str) -> Level:
    names = cpu_flags.split()
    options = [name.replace("amx_", "amx-").replace("_", "") for name in names]
    return Level(frozenset(names), tuple("-m" + option for option in options))


_AVX512_BF16 = "avx512f avx512bw avx512vl avx512dq avx512vbmi avx512_vnni avx512_bf16"

# Best first.
LEVELS = {
    "amx": _level(f"{_AVX512_BF16} amx_tile amx_bf16 amx_int8"),
    "avx512_bf16": _level(_AVX512_BF16),
    "avx512_vnni": _level("avx512f avx512bw avx512vl avx512dq avx512_vnni"),
    "avx512": _level("avx512f avx512bw avx512vl avx512dq"),
    "avx2": _level("avx2 fma"),
    "portable": _level(""),
}


class BuildError(Exception):
    """The kernels could not be compiled; one line says why."""


def compilable_levels() -> list[str]:
    """Levels of this machine's architecture, best first."""
    return list(LEVELS) if platform.machine() in ("x86_64", "AMD64") else ["portable"]


def runnable_levels() -> list[str]:
    """Those of them that this processor runs, best first."""
    flags = _cpu_flags()
    return [name for name in compilable_levels() if LEVELS[name].cpu_flags <= flags]


def library_name(level: str) -> str:
    """File name of the level's library for the sources as they are now."""
    digest = hashlib.sha256(" ".join(_flags(level)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"kernels-{level}-{digest.hexdigest()[:16]}.so"


def build(level: str, target: Path) -> None:
    """Compile the level's library to `target`, whole or not at all; raises BuildError."""
    compiler = find_compiler()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = {source: f"{folder}/{source.stem}.o" for source in sorted(SOURCES.glob("*.cpp"))}
        list(
            pool.map(lambda source: _run([compiler, *_flags(level), "-c", str(source), "-o", objects[source]]), objects)
        )
        made = f"{folder}/{target.name}"
        _run([compiler, *_flags(level), "-shared", *objects.values(), "-o", made])
        os.replace(made, target)  # a library that another process has mapped stays whole


def build_once(level: str, folder: Path) -> Path:
    """The level's library in `folder`, compiled if it is missing; one process compiles, others wait
    for it.
    """
    target = folder / library_name(level)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                build(level, target)
    except OSError as error:
        raise BuildError(f"cannot write the kernels to {folder}: {error.strerror}") from None
    return target


def find_compiler() -> str:
    """$CXX, or the first of c++, g++ and clang++ on the path; raises BuildError."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise BuildError("no C++ compiler (c++, g++, clang++ or $CXX)")


def _flags(level: str) -> list[str]:
    return [*COMMON_FLAGS, *LEVELS[level].compiler_flags]


def _cpu_flags() -> frozenset[str]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return frozenset(next((line.split(":")[1] for line in lines if line.startswith("flags")), "").split())


def _run(command: list[str]) -> None:
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        lines = finished.stderr.strip().splitlines() or [f"exit status {finished.returncode}"]
        reason = next((line for line in lines if "error" in line), lines[-1])
        raise BuildError(f"{command[0]} cannot compile the kernels: {reason}")
