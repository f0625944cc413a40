"""The GPU benchmark where there is no GPU: everything runs, on tiny sizes and the reference."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.gpu.all_reduce import NUM_BYTES
from tests.benchmarks.gpu.engine import LONGEST, requests

ROOT = Path(__file__).resolve().parents[3]


def test_a_rehearsal_measures_everything(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--device", "cpu", "--quick", "--output", output]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
    report = json.loads(output.read_text(encoding="utf-8"))
    assert len(report["kernels"]) == 38
    assert all(0 <= each["error"] < 1e-2 for each in report["kernels"])
    assert [each["bytes"] for each in report["all_reduce"]] == NUM_BYTES[:2]
    exact, fast = report["engine"]
    assert exact["output_tokens"] == fast["output_tokens"] == sum(params.max_tokens for _, params in requests(4, 12))


def test_the_requests_are_nano_vllms() -> None:
    assert sum(params.max_tokens or 0 for _, params in requests(256, LONGEST)) == 133_966
