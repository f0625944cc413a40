"""Finding the kernels and doing without them."""

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import ops
from ops.cpu import build, library

ROOT = Path(__file__).parents[3]
REPORT = """
import torch, ops
reason = ops.unavailable_reason("cpu", torch.device("cpu"))
print(ops.select("auto", torch.device("cpu")).NAME, "|", reason)
"""


# Room for signal handlers that is too small for tile registers.
WITHOUT_TILE_REGISTERS = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))
room = ctypes.create_string_buffer(4096)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(room), 0, len(room))), None) == 0
from ops.cpu import library
print(library.isa(), library.usable_levels())
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


def test_a_process_tells_of_the_kernels_that_it_has_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not of those that lie there since, of another version."""
    device = torch.device("cpu")
    before = ops.arithmetic(ops.select("cpu", device), device)
    assert build.library_name(library.isa()).removesuffix(".so") in before
    monkeypatch.setattr(build, "SOURCES", shutil.copytree(build.SOURCES, tmp_path / "src"))
    with open(build.SOURCES / "tile.cpp", "a") as source:
        source.write("// changed\n")
    assert ops.arithmetic(ops.select("cpu", device), device) == before


def test_the_kernels_threads_are_this_process_own_and_stay_the_same() -> None:
    threads = library.thread_ids(2)
    assert threads[0] == threading.get_native_id()
    assert len(set(threads)) == 2 and all((Path("/proc/self/task") / str(thread)).exists() for thread in threads)
    assert library.thread_ids(2) == threads


def test_without_a_compiler_the_reference_computes(checkout: Path) -> None:
    (checkout / "empty").mkdir()
    found = report(checkout, PATH=str(checkout / "empty"), CXX="", SQUADRON_CPU_ISA="")
    assert found == "reference | no C++ compiler (c++, g++, clang++ or $CXX)"


def test_a_level_that_the_processor_lacks_is_refused(checkout: Path) -> None:
    assert report(checkout, SQUADRON_CPU_ISA="mmx").startswith("reference | SQUADRON_CPU_ISA=mmx: this processor runs ")


@pytest.mark.skipif("amx" not in build.runnable_levels(), reason="wants a processor with AMX")
@pytest.mark.skipif("SQUADRON_CPU_ISA" in os.environ, reason="a level was asked for by name")
def test_without_the_systems_leave_tile_registers_are_not_used() -> None:
    script = [sys.executable, "-c", WITHOUT_TILE_REGISTERS]
    found = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("avx512_bf16 ('avx512_bf16', ")
    reason = (
        "cannot load the kernels: the system does not let this process use the tile registers of AMX: "
        "a thread's stack for signals is too small"
    )
    assert found.stderr == f"The kernels are those for avx512_bf16 only: {reason}\n"
    asked = {**os.environ, "SQUADRON_CPU_ISA": "amx"}
    refused = subprocess.run(script, cwd=ROOT, env=asked, capture_output=True, text=True).stderr
    assert refused.splitlines()[-1].endswith(f"KernelsUnavailable: {reason}")


def test_other_dtypes_are_refused_by_name() -> None:
    assert [library.dtype_number(torch.zeros(1, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)] == [0, 1]
    with pytest.raises(ValueError, match=r"float32 and bfloat16, not in torch.float16"):
        library.dtype_number(torch.zeros(1, dtype=torch.float16))


@pytest.mark.skipif(library.unavailable_reason() is not None, reason=str(library.unavailable_reason()))
def test_calls_go_elsewhere_in_one_thread_and_while_it_is_asked_for() -> None:
    stand_in = object()
    with ThreadPoolExecutor(1) as other, library.calls_go_to(stand_in):
        assert library.library() is stand_in
        assert library.kernels() is not stand_in
        assert other.submit(library.library).result() is library.kernels()
    assert library.library() is library.kernels()


@pytest.mark.skipif(library.unavailable_reason() is not None, reason=str(library.unavailable_reason()))
def test_the_level_in_use_is_the_first_of_those_that_may_be() -> None:
    assert library.usable_levels()[0] == library.isa()
