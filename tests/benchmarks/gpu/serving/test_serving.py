"""The check of a whole server on a GPU, where there is none."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.gpu.serving.__main__ import Book
from tests.benchmarks.gpu.serving.asked import differing, requests
from tests.benchmarks.gpu.serving.server import Served, serving
from tests.benchmarks.gpu.serving.stages import stages
from tests.benchmarks.gpu.serving.steps import Wrong
from tests.end_to_end.conftest import DEMO

ROOT = DEMO.parents[1]


def test_a_step_that_fails_or_hangs_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    output = tmp_path / "serving.json"

    async def fail() -> dict[str, Any]:
        raise Wrong("other tokens")

    async def hang() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def succeed() -> dict[str, Any]:
        return {"tok_per_s": 7.0}

    async def run() -> int:
        book = Book(output, 1.0)
        await book.step("fails", fail())
        await book.step("hangs", hang(), 0.01)
        await book.step("succeeds", succeed())
        return book.num_failed

    assert asyncio.run(run()) == 2
    failing, hanging, succeeding = json.loads(output.read_text(encoding="utf-8"))["steps"]
    assert failing["failed"] == "other tokens" and hanging["failed"] == "TimeoutError: "
    assert (succeeding["step"], succeeding["tok_per_s"]) == ("succeeds", 7.0) and "failed" not in succeeding


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    async def start() -> None:
        async with serving(DEMO, ["--max-num-seqs", "0"], 60.0, tmp_path):
            raise AssertionError("it started")

    with pytest.raises(ChildProcessError, match="max_num_seqs"):
        asyncio.run(start())
    assert "max_num_seqs" in (tmp_path / "said.txt").read_text(encoding="utf-8")


def test_what_a_server_says_of_its_ray() -> None:
    said = [
        "Ready: http://127.0.0.1:8000/v1 (Ray cluster 127.0.0.1:6379); Ctrl-C ends it",
        "Other Ray jobs connect with RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=/tmp/token",
    ]
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/tmp/token"}
    assert Served(1, 8000, 0.0, said).ray == ("127.0.0.1:6379", environment)


def test_requests_are_the_same_each_time_and_differences_are_found() -> None:
    assert requests(4, 8) == requests(4, 8)
    assert {request.body["temperature"] for request in requests(4, 8)} == {0, 1}
    assert differing(["a", "b", "c"], ["a", "x", "c"]) == [1]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_rehearsal_does_every_step(tmp_path: Path) -> None:
    output = tmp_path / "serving.json"
    command = [sys.executable, "-m", "tests.benchmarks.gpu.serving", "--device", "cpu", "--quick", "--minutes", "25"]
    done = subprocess.run([*command, "--output", str(output)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [step["step"] for step in json.loads(output.read_text(encoding="utf-8"))["steps"]]
    assert steps == [
        f"{stage.name}: {name}"
        for stage in stages("cpu", True, tmp_path)
        for name in (*(name for name, _ in stage.before), "start", *(name for name, _ in stage.steps))
    ]
    assert output.with_suffix(".tar.gz").stat().st_size > 0
