"""Each GPU kernel against float64 and against what the device could do, then the engine: `python -m tests.benchmarks.gpu`.

From a checkout, with torch and Triton installed; the engine's part needs pydantic, tokenizers and jinja2 as well and says so
where they are missing. Takes a few minutes on a GPU. `--device cpu --quick` rehearses it in tiny sizes: with TRITON_INTERPRET=1
on the kernels themselves, else on the reference. Figures of a rehearsal mean nothing.
"""

import argparse
import importlib
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import ops as backends
from tests.benchmarks.gpu.all_reduce import NUM_BYTES, all_reduce_figures
from tests.benchmarks.gpu.case import QUICK, SIZES, Case
from tests.benchmarks.gpu.cases import cases
from tests.benchmarks.gpu.timing import Device, measure_device, seconds
from tests.ops.kernels.where import IS_INTERPRETED

ROOT = Path(__file__).resolve().parents[3]
TOLERANCE = 1e-2  # of the largest value: bfloat16's own step is 4e-3


def main() -> int:
    options = parse()
    device = torch.device(options.device)
    torch.manual_seed(0)
    repeats = 1 if options.quick else 20
    report: dict[str, Any] = {"environment": environment(device), "quick": options.quick, "kernels": [], "engine": []}
    before = measure_device(device, repeats)
    for size_name, sizes in (QUICK if options.quick else SIZES).items():
        for backend in backends_for(device):
            for alike in cases(backend, sizes, device, torch.bfloat16):
                report["kernels"].append(measure(backend.NAME, size_name, alike, before, device, repeats))
                print(line(report["kernels"][-1]), flush=True)
    after = measure_device(device, repeats)
    report["before"], report["after"] = (
        {"copy": each.copy_rate, "product": each.product_rate} for each in (before, after)
    )
    report["all_reduce"] = all_reduce_figures(device, NUM_BYTES[:2] if options.quick else NUM_BYTES, repeats)
    report["engine"] = engine_figures(device, options.quick)
    print(f"copy {before.copy_rate / 1e12:.3g} TB/s before, {after.copy_rate / 1e12:.3g} after; ", end="")
    print(f"bf16 product {before.product_rate / 1e12:.3g} TFLOP/s before, {after.product_rate / 1e12:.3g} after")
    for figures in report["all_reduce"] + report["engine"]:
        print(figures)
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    wrong = [each for each in report["kernels"] if each["error"] > TOLERANCE]
    for each in wrong:
        print(
            f"WRONG: {each['backend']} {each['size']} {each['case']}: off by {each['error']:.2g} of the largest value"
        )
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a rehearsal")
    parser.add_argument("--output", type=Path, help="a file for the figures, as JSON")
    options = parser.parse_args()
    if options.device == "cpu" and not options.quick:
        parser.error("--device cpu is for rehearsals: give --quick too")
    return options


def backends_for(device: torch.device) -> list[Any]:
    """Exact and fast; the reference where there is neither a GPU nor the interpreter."""
    if device.type == "cpu" and not IS_INTERPRETED:
        return [backends.select("reference", device)]
    if IS_INTERPRETED:
        importlib.import_module("tests.ops.kernels.interpreter")
    return [importlib.import_module(name) for name in ("ops.kernels", "ops.kernels.fast")]


def measure(
    backend: str, size: str, alike: list[Case], device_rates: Device, device: torch.device, repeats: int
) -> dict[str, Any]:
    case = alike[0]
    want = case.want().double()
    got = case.run()[: len(want)].double()
    error = float((got - want).abs().max() / want.abs().max().clamp(min=1e-30))
    taken = seconds([each.run for each in alike], device, repeats)
    floor = max(case.num_bytes / device_rates.copy_rate, case.num_operations / device_rates.product_rate)
    return {
        "backend": backend,
        "size": size,
        "case": case.name,
        "error": error if torch.isfinite(got).all() else float("inf"),
        "microseconds": 1e6 * taken,
        "of_floor": floor / taken,
        "bytes_per_s": case.num_bytes / taken,
        "operations_per_s": case.num_operations / taken,
    }


def line(figures: dict[str, Any]) -> str:
    name = f"{figures['backend']:<12} {figures['size']:<6} {figures['case']:<36}"
    share = 100 * figures["of_floor"]
    return f"{name} {figures['microseconds']:>10.1f} us, {share:>5.1f} % of floor, off {figures['error']:.1e}"


def engine_figures(device: torch.device, quick: bool) -> list[dict[str, Any]]:
    try:
        engine = importlib.import_module("tests.benchmarks.gpu.engine")
    except ModuleNotFoundError as error:
        return [{"not measured": f"there is no module {error.name}"}]
    return [engine.measure_engine(device.type, exact=exact, quick=quick) for exact in (True, False)]


def environment(device: torch.device) -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    triton = importlib.import_module("triton") if device.type == "cuda" or IS_INTERPRETED else None
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__ if triton else None,
        "commit": commit.stdout.strip() or None,
        "command": " ".join(sys.argv),
    }


if __name__ == "__main__":
    sys.exit(main())
