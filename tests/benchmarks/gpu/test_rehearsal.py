"""The GPU benchmark where there is no GPU: everything runs, on tiny sizes and the reference."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.benchmarks.gpu.__main__ import MINUTES, commit_of
from tests.benchmarks.gpu.all_reduce import NUM_BYTES
from tests.benchmarks.gpu.children import run_part
from tests.benchmarks.gpu.engine import LONGEST, requests
from tests.benchmarks.gpu.parts import Part, parts
from tests.benchmarks.gpu.table import table

# What every process begins with: neither jinja2, which the engine imports, nor transformers, and a
# kernel that breaks the device.
BROKEN = """
import sys
import ops.reference, torch

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("jinja2", "transformers"):
            raise ModuleNotFoundError(f"no {name}")

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
    num_tokens, fewer_tokens = (sum(params.max_tokens for _, params in requests(*load)) for load in ((4, 12), (2, 8)))
    for kind in ("exact", "fast"):
        *batches, mixed, many, fewer = figures[f"engine quick {kind}"]
        assert [each["batch"] for each in batches] == [1, 2]
        assert mixed["ttft_ms_p50"] > 0 < mixed["gap_ms_p50"]
        assert [many["output_tokens"], fewer["output_tokens"]] == [num_tokens, fewer_tokens]
    assert printed.count("exact costs") == 4
    assert [each["batch"] for each in figures["peers quick"]] == [1, 2]
    assert [each["output_tokens"] for each in figures["peers quick many"]] == [fewer_tokens, fewer_tokens]
    assert [each["cache"] for each in figures["peers quick compiled"]] == ["static"]
    assert printed.count("times as fast as of transformers") == 2 * 3
    assert printed.count("times the tokens a second of transformers") == 2 * 2


@pytest.mark.long
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
    assert printed.splitlines()[-1] == "FAILED peers quick compiled: no time was left"
    figures, failure = run_part("engine quick exact", "cpu", True, 0.5, lambda _: None)
    assert (figures, failure) == ([], "took longer than 0.5 s")


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, id=part.name, marks=[pytest.mark.long] * (part.name in ("two ranks", "engine quick fast")))
        for part in parts(CPU, True)
    ],
)
def test_every_part_begins(part: Part) -> None:
    """The first thing that each measures; the whole is `long`."""
    measures = part.measures(CPU, True)
    figures = next(measures)()
    assert figures and "failed" not in figures
    measures.close()


def test_one_call_of_ten_minutes_has_time_for_all_parts() -> None:
    with patch("torch.cuda.is_available", lambda: True):
        limits = {part.name: part.seconds for part in parts(torch.device("cuda"), False) if not part.is_peer}
    assert list(limits)[:2] == ["tests", "device before"]
    assert {name for name in limits if name.startswith("engine")} == {
        "engine 0.5b exact",
        "engine 7b exact",
        "engine 0.5b fast",
    }
    assert sum(limits.values()) <= 60 * MINUTES < 600


@pytest.mark.long
def test_peers_come_last_and_fail_nothing(tmp_path: Path) -> None:
    are_peers = [part.is_peer for part in parts(CPU, True)]
    assert are_peers == sorted(are_peers)
    (tmp_path / "sitecustomize.py").write_text(BROKEN, encoding="utf-8")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    status, _, printed = rehearse(tmp_path / "gpu.json", "--parts", "device", "peers quick many", PYTHONPATH=path)
    assert (status, "peers quick many: FAILED: ModuleNotFoundError: no" in printed) == (0, True)
    status, report, _ = rehearse(tmp_path / "gpu.json", "--parts", "peers", "--minutes", "0")
    assert (status, len(report["failed"])) == (0, are_peers.count(True))


def test_peers_are_compared_under_the_same_load() -> None:
    batch, many = {"shape": "7b", "batch": 64, "context": 9}, {"shape": "7b", "requests": 64, "longest": 512}
    peer = {"peer": "transformers 5", "attention": "sdpa"}
    figures = {
        "engine": [
            {**batch, "exact": True, "ms_a_step": 2.0},
            {**batch, "batch": 1, "exact": True, "ms_a_step": 1.0},
            {**many, "exact": False, "output_tok_per_s": 300.0},
            {**many, "requests": 256, "exact": False, "output_tok_per_s": 900.0},
        ],
        "peers": [
            {**batch, **peer, "cache": "dynamic", "ms_a_step": 5.0},
            {**many, **peer, "way": "one padded batch", "output_tok_per_s": 100.0},
        ],
    }
    report = {
        "environment": {"device": "", "torch": "", "date": ""},
        "parts": {name: {"figures": each} for name, each in figures.items()},
        "failed": {},
    }
    assert [line for line in table(report).splitlines() if "transformers 5 (" in line] == [
        "engine 7b exact, batch 64: a step is 2.50 times as fast as of transformers 5 (dynamic, sdpa)",
        "engine 7b fast, 64 requests: 3.00 times the tokens a second of transformers 5 (one padded batch, sdpa)",
    ]


def test_the_commit_is_this_checkouts_own(tmp_path: Path) -> None:
    """None in a copy without .git, even inside of another repository, and where there is no git."""
    repository = tmp_path / "repository"
    copy = repository / "copy"
    copy.mkdir(parents=True)
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "Begin"]):
        subprocess.run([*git, *command], cwd=repository, check=True)
    commit = commit_of(repository)
    assert commit is not None and len(commit) == 40
    assert commit_of(copy) is None
    with patch.dict(os.environ, PATH=str(tmp_path)):
        assert shutil.which("git") is None
        assert commit_of(repository) is None


def test_the_commit_can_be_said(tmp_path: Path) -> None:
    _, report, _ = rehearse(tmp_path / "gpu.json", "--parts", "none", "--commit", "abc")
    assert report["environment"]["commit"] == "abc"


def test_the_requests_are_nano_vllms() -> None:
    assert sum(params.max_tokens or 0 for _, params in requests(256, LONGEST)) == 133_966
