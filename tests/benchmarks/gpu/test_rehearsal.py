"""The GPU benchmark where there is no GPU: everything runs, on tiny sizes and the reference."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.benchmarks.gpu.__main__ import MINUTES
from tests.benchmarks.gpu.all_reduce import NUM_BYTES
from tests.benchmarks.gpu.children import run_part
from tests.benchmarks.gpu.engine import LONGEST, requests
from tests.benchmarks.gpu.parts import Part, parts

# What every process begins with: no jinja2, which the engine imports, and a kernel that breaks the
# device.
BROKEN = """
import sys
import ops.reference, torch

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "jinja2":
            raise ModuleNotFoundError("no jinja2")

def fail(x):
    raise torch.AcceleratorError("an illegal memory access")

sys.meta_path.insert(0, Missing())
ops.reference.silu_and_mul = fail
"""
CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[3]


def rehearse(output: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, the report, and what was printed."""
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--device", "cpu", "--quick", "--output", str(output)]
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=inherited | environment, capture_output=True, text=True
    )
    return child.returncode, json.loads(output.read_text(encoding="utf-8")), child.stdout


@pytest.mark.long
def test_a_rehearsal_measures_everything(tmp_path: Path) -> None:
    status, report, printed = rehearse(tmp_path / "gpu.json")
    assert (status, report["failed"]) == (0, {}), printed
    figures = {name: part["figures"] for name, part in report["parts"].items()}
    kernels = figures["kernels quick ops.reference"]
    assert len(kernels) == 38
    assert len(figures["kernels quick sdpa math"]) == 3
    assert all(0 <= each["error"] < 1e-2 for each in kernels)
    assert figures["two ranks"] == [{"same bits as one": True}]
    assert [each["bytes"] for each in figures["all-reduce"][0]["sizes"]] == NUM_BYTES[:2]
    num_tokens = sum(params.max_tokens for _, params in requests(4, 12))
    for kind in ("exact", "fast"):
        *batches, mixed, many = figures[f"engine quick {kind}"]
        assert [each["batch"] for each in batches] == [1, 2]
        assert mixed["ttft_ms_p50"] > 0 < mixed["gap_ms_p50"]
        assert many["output_tokens"] == num_tokens
    assert printed.count("exact costs") == 3


def test_what_does_not_work_takes_nothing_else_along(tmp_path: Path) -> None:
    """The engine cannot be imported, and a kernel makes the device fail: that is told, and the rest
    is measured.
    """
    (tmp_path / "sitecustomize.py").write_text(BROKEN, encoding="utf-8")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    status, report, printed = rehearse(
        tmp_path / "gpu.json", "--parts", "engine quick exact", "kernels quick ops", PYTHONPATH=path
    )
    assert (status, report["failed"]) == (1, {})
    kernels = report["parts"]["kernels quick ops.reference"]["figures"]
    assert len(kernels) == 38
    assert [each["failed"] for each in kernels if "failed" in each] == ["AcceleratorError: an illegal memory access"]
    assert "engine quick exact: FAILED: ModuleNotFoundError: no jinja2" in printed


def test_what_there_is_no_time_for_is_told(tmp_path: Path) -> None:
    status, report, printed = rehearse(tmp_path / "gpu.json", "--minutes", "0")
    assert (status, set(report["failed"].values())) == (1, {"no time was left"})
    assert printed.splitlines()[-1] == "FAILED device after: no time was left"
    figures, failure = run_part("engine quick exact", "cpu", True, 0.5, lambda _: None)
    assert (figures, failure) == ([], "took longer than 0.5 s")


@pytest.mark.parametrize("part", parts(CPU, True), ids=lambda part: part.name)
def test_every_part_begins(part: Part) -> None:
    """The first thing that each measures; the whole is `long`."""
    measures = part.measures(CPU, True)
    figures = next(measures)()
    assert figures and "failed" not in figures
    measures.close()


def test_one_call_of_ten_minutes_has_time_for_all_parts() -> None:
    with patch("torch.cuda.is_available", lambda: True):
        limits = {part.name: part.seconds for part in parts(torch.device("cuda"), False)}
    assert list(limits)[:2] == ["tests", "device before"]
    assert {name for name in limits if name.startswith("engine")} == {
        "engine 0.5b exact",
        "engine 7b exact",
        "engine 0.5b fast",
    }
    assert sum(limits.values()) <= 60 * MINUTES < 600


def test_the_requests_are_nano_vllms() -> None:
    assert sum(params.max_tokens or 0 for _, params in requests(256, LONGEST)) == 133_966
