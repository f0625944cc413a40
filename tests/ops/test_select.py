import inspect
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ops as backends
from ops import interface, reference

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_reference_runs_everywhere() -> None:
    assert backends.select("reference", CPU) is reference
    assert backends.select("reference", CUDA) is reference
    assert reference.NAME == "reference"


def test_auto_takes_the_fastest_that_can_run() -> None:
    chosen = backends.select("auto", CPU)
    expected = "cpu" if backends.unavailable_reason("cpu", CPU) is None else "reference"
    assert expected == chosen.NAME


def test_a_backend_that_is_asked_for_by_name_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.MODULES, "triton", "ops.not_there")
    with pytest.raises(
        backends.UnavailableBackend, match=r"triton backend cannot run on cuda: ops.not_there is not part"
    ):
        backends.select("triton", CUDA)
    with pytest.raises(backends.UnavailableBackend, match="cpu backend cannot run on cuda: it is for cpu devices"):
        backends.select("cpu", CUDA)
    assert backends.select("auto", CUDA) is reference


def test_what_need_not_be_exact_is_the_faster_form_where_there_is_one() -> None:
    assert backends.select("reference", CUDA, exact=False) is reference
    pytest.importorskip("triton")
    fast, exact = backends.select("triton", CUDA, exact=False), backends.select("triton", CUDA)
    assert (fast.NAME, fast.EXACT, exact.NAME, exact.EXACT) == ("triton-fast", False, "triton", True)
    for name, function in inspect.getmembers(interface.Ops, inspect.isfunction):
        if not name.startswith("_"):
            wanted = list(inspect.signature(function).parameters)[1:]
            assert list(inspect.signature(getattr(fast, name)).parameters) == wanted, name


def test_a_quantization_that_is_not_computed_is_refused_with_what_would_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backends.select("reference", CPU, "fp8").NAME == "reference"
    if backends.unavailable_reason("cpu", CPU) is None:
        with pytest.raises(backends.UnavailableBackend, match="fp8 is not computed by the cpu backend; int8 or int4"):
            backends.select("cpu", CPU, "fp8")
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(
        backends.UnavailableBackend, match=r"fp8 needs a GPU of compute capability 8.9 .* has 8.0; int8"
    ):
        backends.select("triton", CUDA, "fp8")
    assert backends.select("triton", CUDA, "int4", exact=False).EXACT
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert backends.select("triton", CUDA, "fp8").NAME == "triton"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(backends.UnavailableBackend, match="'fast'; there are auto, reference, cpu, triton"):
        backends.select("fast", CPU)


@pytest.mark.parametrize("name", ["triton", "triton-fast", "reference"])
@pytest.mark.parametrize("changed", ["kernels/matmul/linear.py", "reference/matmul/quantization.py"])
def test_results_are_known_by_all_sources_that_they_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, changed: str
) -> None:
    """Also by the reference's, which quantizes weights for GPUs."""
    copied = tmp_path / "ops"
    shutil.copytree(Path(backends.__file__).parent, copied, ignore=shutil.ignore_patterns("*.so", "__pycache__", "src"))
    monkeypatch.setattr(backends, "__file__", str(copied / "__init__.py"))
    monkeypatch.setattr(backends, "levels", lambda *_: ("sm90",))
    backend: Any = SimpleNamespace(NAME=name)
    before = backends.arithmetic(backend, CUDA)
    source = copied / changed
    source.write_text(source.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    depends = not (name == "reference" and changed.startswith("kernels"))
    assert (backends.arithmetic(backend, CUDA) != before) == depends
