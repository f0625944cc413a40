"""Each GPU kernel against float64 and against what the device could do, then the engine: `python -m
tests.benchmarks.gpu`.

From a checkout, with torch, Triton, tokenizers and jinja2 installed; takes less than ten minutes on
a GPU. `--device cpu --quick` rehearses it in tiny sizes: with TRITON_INTERPRET=1 on the kernels
themselves, else on the reference. Figures of a rehearsal mean nothing. `--estimate` needs no GPU:
it prints what steps would take on one, by a model of each kernel's cost.
"""

import argparse
import importlib
import json
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.gpu.children import run_part
from tests.benchmarks.gpu.estimate.gpus import GPUS
from tests.benchmarks.gpu.parts import TOLERANCE, parts
from tests.benchmarks.gpu.table import line, table

ROOT = Path(__file__).resolve().parents[3]
MINUTES = 9.0  # for all of it, of a call that may take ten
LEAST_SECONDS = 5  # a part that has less left is not begun


def main() -> int:
    options = parse()
    if options.estimate:
        estimates = importlib.import_module("tests.benchmarks.gpu.estimate.steps")
        print(*estimates.lines(options.shape, options.gpu, options.batch, options.context), sep="\n")
        exactness = importlib.import_module("tests.benchmarks.gpu.estimate.exactness")
        print(*exactness.lines(options.shape, options.gpu, options.batch, options.context), sep="\n")
        return 0
    deadline = time.monotonic() + 60 * options.minutes
    device = torch.device(options.device)
    report: dict[str, Any] = {
        "environment": environment(device, options.commit),
        "quick": options.quick,
        "parts": {},
        "failed": {},
    }
    wanted = [each for each in parts(device, options.quick) if each.name.startswith(tuple(options.parts))]
    for part in wanted:
        left = deadline - time.monotonic()
        if left < LEAST_SECONDS:
            report["failed"][part.name] = "no time was left"
            continue
        began = time.monotonic()
        print(f"{part.name} ...", flush=True)
        figures, failure = run_part(part.name, device.type, options.quick, min(part.seconds, left), show)
        report["parts"][part.name] = {"seconds": time.monotonic() - began, "figures": figures}
        if failure:
            report["failed"][part.name] = failure
        write(report, options.output)
    write(report, options.output)
    print(table(report))
    ours = [part.name for part in wanted if not part.is_peer]
    measured = [each for name in ours for each in report["parts"].get(name, {"figures": []})["figures"]]
    is_wrong = any(each.get("error", 0.0) > TOLERANCE or not each.get("same bits as one", True) for each in measured)
    is_missing = any(name in report["failed"] for name in ours) or any("failed" in each for each in measured)
    return 1 if is_wrong or is_missing else 0


def write(report: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def show(figures: dict[str, Any]) -> None:
    print("  " + line(figures), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a rehearsal")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="for all of it; what is left then is not measured"
    )
    parser.add_argument("--parts", nargs="+", default=[""], help="how the names of those to be measured begin")
    parser.add_argument("--commit", help="of this checkout, where git cannot say")
    parser.add_argument("--output", type=Path, default=Path("bench-gpu.json"), help="a file for the figures")
    parser.add_argument(
        "--estimate", action="store_true", help="no GPU: what steps would take on one, kernel by kernel"
    )
    parser.add_argument("--gpu", choices=GPUS, default="h200", help="of estimates")
    parser.add_argument(
        "--shape", nargs="+", default=["0.5b", "7b"], help="of estimates: 0.5b, 7b or folders with a config.json"
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 64, 256], help="of estimates")
    parser.add_argument("--context", type=int, default=1024, help="of estimates: tokens of each sequence")
    options = parser.parse_args()
    if options.estimate:
        return options
    if options.device == "cpu" and not options.quick:
        parser.error("--device cpu is for rehearsals: give --quick too")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device can be seen here; --device cpu --quick rehearses")
    return options


def environment(device: torch.device, commit: str | None) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor(),
        "devices": torch.cuda.device_count(),
        "machine": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": version_of("triton"),
        "transformers": version_of("transformers"),
        "commit": commit or commit_of(ROOT),
        "command": " ".join(("python -m tests.benchmarks.gpu", *sys.argv[1:])),
    }


def commit_of(checkout: Path) -> str | None:
    """None without git, or where `checkout` is not a repository of its own."""
    command = ["git", "rev-parse", "--show-toplevel", "HEAD"]
    try:
        child = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    except OSError:
        return None
    said = child.stdout.splitlines()
    return said[1] if child.returncode == 0 and Path(said[0]) == checkout else None


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
