"""What the benchmark consists of. A part runs in a process of its own: what one breaks on the
device, the others do not see.

`python -m tests.benchmarks.gpu.parts NAME ...` is such a process: it prints a line of JSON for
everything measured.
"""

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from engine.worker.device.errors import has_failed
from tests.benchmarks.gpu.case import QUICK, SIZES, Make, Sizes
from tests.benchmarks.gpu.cases import cases
from tests.benchmarks.gpu.timing import Device, measure_device, seconds
from tests.ops.kernels.where import IS_INTERPRETED

Figures = dict[str, Any]
DEVICE_FAILED = 3  # exit status: what was asked for after the last line is still to be measured
TOLERANCE = 1e-2  # of the largest value: bfloat16's own step is 4e-3; of tokens, how many may differ
REPEATS = 20
REHEARSAL = 300  # seconds for a part that is only rehearsed, on whatever machine


@dataclass(frozen=True, slots=True)
class Part:
    """`measures` makes what is to be measured, one after the other: each is a figure, or raises."""

    name: str
    seconds: float  # it gets at most
    measures: Callable[[torch.device, bool], Iterator[Callable[[], Figures]]]
    is_peer: bool = False  # not ours: what fails is told, and does not fail the benchmark


def parts(device: torch.device, quick: bool) -> list[Part]:
    """In the order of their worth: the last ones are left out where time runs short. Their seconds
    add up to less than the nine minutes that all may take, but for the peers', who get what is
    left. What a part has measured before its time is over counts, and its own measures are in the
    order of their worth, too.
    """
    small, large = ("quick", "quick") if quick else ("0.5b", "7b")
    exact, *fast = _backends(device)
    rivals = ("sdpa flash", "sdpa cudnn") if device.type == "cuda" else ("sdpa math",)
    all_of_them = [
        *([Part("tests", 120, _tests)] if device.type == "cuda" else []),
        Part("device before", 12, _device),
        Part(f"engine {small} exact", 85, partial(_engine, small, True)),
        *([] if quick else [Part(f"engine {large} exact", 75, partial(_engine, large, True))]),
        Part(f"kernels {large} {exact}", 50, partial(_kernels, exact, large)),
        *(Part(f"kernels {large} {rival}", 12, partial(_rivals, rival, large)) for rival in rivals),
        Part(f"engine {small} fast", 55, partial(_engine, small, False)),
        *([] if quick else [Part(f"kernels {small} {exact}", 40, partial(_kernels, exact, small))]),
        *(Part(f"kernels {large} {name}", 18, partial(_kernels, name, large)) for name in fast),
        Part("two ranks", 35, _two_ranks),
        Part("all-reduce", 16, _all_reduce),
        Part("device after", 8, _device),
        Part(f"peers {small}", 40, partial(_peers, small, "steps"), is_peer=True),
        Part(f"peers {small} many", 60, partial(_peers, small, "many"), is_peer=True),
        *([] if quick else [Part(f"peers {large}", 45, partial(_peers, large, "steps"), is_peer=True)]),
        Part(f"peers {small} compiled", 90, partial(_peers, small, "compiled_steps"), is_peer=True),
    ]
    return [replace(part, seconds=REHEARSAL) for part in all_of_them] if quick else all_of_them


def _tests(device: torch.device, quick: bool) -> Iterator[Callable[[], Figures]]:
    """Those for GPUs: what is measured of wrong results means nothing."""

    def run() -> Figures:
        command = [sys.executable, "-m", "pytest", "-c", "tests/gpu.ini", "--rootdir=.", "-q", "-p", "no:cacheprovider"]
        child = subprocess.run(command, capture_output=True, text=True)
        lines = child.stdout.strip().splitlines()
        figures: Figures = {"tests": lines[-1] if lines else child.stderr[-200:]}
        if child.returncode:
            figures["failed"] = (
                "; ".join(line for line in lines if line.startswith(("FAILED", "ERROR"))) or figures["tests"]
            )
        return figures

    yield run


def _device(device: torch.device, quick: bool) -> Iterator[Callable[[], Figures]]:
    def measure() -> Figures:
        rates = measure_device(device, 1 if quick else REPEATS)
        return {"copy": rates.copy_rate, "product": rates.product_rate}

    yield measure


def _engine(shape: str, exact: bool, device: torch.device, quick: bool) -> Iterator[Callable[[], Figures]]:
    try:
        measured = _module("engine").Measured(shape, device.type, exact=exact)
    except ImportError as error:
        yield partial(_raise, error)
        return
    try:
        yield from measured.measures()
    finally:
        measured.close()


def _peers(shape: str, what: str, device: torch.device, quick: bool) -> Iterator[Callable[[], Figures]]:
    try:
        peer = _module("peers").Peer(shape, device)
    except (ImportError, AttributeError) as error:  # no transformers, or too old
        yield partial(_raise, error)
        return
    yield from getattr(peer, what)()


def _raise(error: Exception) -> Figures:
    raise error


def _backends(device: torch.device) -> list[str]:
    """Exact and fast; the reference where there is neither a GPU nor the interpreter."""
    return ["ops.reference"] if device.type == "cpu" and not IS_INTERPRETED else ["ops.kernels", "ops.kernels.fast"]


def _kernels(name: str, size: str, device: torch.device, quick: bool) -> Iterator[Callable[[], Figures]]:
    if IS_INTERPRETED:
        importlib.import_module("tests.ops.kernels.interpreter")
    backend: Any = importlib.import_module(name)
    sizes: Sizes = (QUICK if quick else SIZES)[size]
    repeats = 1 if quick else REPEATS
    rates = measure_device(device, repeats)
    for make in cases(backend, sizes, device, torch.bfloat16):
        yield partial(_kernel, backend.NAME, size, make, rates, device, repeats)


def _rivals(rival: str, size: str, device: torch.device, quick: bool) -> Iterator[Callable[[], Figures]]:
    repeats = 1 if quick else REPEATS
    rates = measure_device(device, repeats)
    for make in _module("rivals").rival_cases(rival, (QUICK if quick else SIZES)[size], device, torch.bfloat16):
        yield partial(_kernel, rival, size, make, rates, device, repeats)


def _kernel(backend: str, size: str, make: Make, rates: Device, device: torch.device, repeats: int) -> Figures:
    alike = make()
    case = alike[0]
    want = case.want()
    got = case.run()[: len(want)]
    taken = seconds([each.run for each in alike], device, repeats)
    floor = max(case.num_bytes / rates.copy_rate, case.num_operations / rates.product_rate)
    return {
        "backend": backend,
        "size": size,
        "case": case.name,
        "error": _error(got, want),
        "microseconds": 1e6 * taken,
        "of_floor": floor / taken,
        "bytes_per_s": case.num_bytes / taken,
        "operations_per_s": case.num_operations / taken,
    }


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, as a share of the largest value; of tokens, the share of those that
    differ.
    """
    if not got.is_floating_point():
        return float((got != want).double().mean())
    if not torch.isfinite(got).all():
        return float("inf")
    got, want = got.double(), want.double()
    return float((got - want).abs().max() / want.abs().max().clamp(min=1e-30))


def _two_ranks(device: torch.device, quick: bool) -> Iterator[Callable[[], Figures]]:
    yield lambda: {"same bits as one": _module("two_ranks").compare_ranks(device)}


def _all_reduce(device: torch.device, quick: bool) -> Iterator[Callable[[], Figures]]:
    def measure() -> Figures:
        sums = _module("all_reduce")
        num_bytes = sums.NUM_BYTES[:2] if quick else sums.NUM_BYTES
        return {"sizes": sums.all_reduce_figures(device, num_bytes, 1 if quick else REPEATS)}

    yield measure


def _module(name: str) -> Any:
    """Imported by those alone that measure it: what is missing for one part is not missed by the
    others.
    """
    return importlib.import_module(f"tests.benchmarks.gpu.{name}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("--device", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--skip", type=int, default=0, help="how many things have been measured")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    (part,) = [part for part in parts(device, options.quick) if part.name == options.part]
    for index, measure in enumerate(part.measures(device, options.quick)):
        if index < options.skip:
            continue
        failure: Exception | None = None
        try:
            figures = measure()
        except Exception as error:
            failure, figures = error, {"failed": f"{type(error).__name__}: {error}".splitlines()[0], **_named(measure)}
        print(json.dumps(figures), flush=True)
        if failure is not None and has_failed(failure):
            return DEVICE_FAILED
    return 0


def _named(measure: Any) -> Figures:
    """Which kernel was to be measured, as far as is known before its case is made."""
    if not isinstance(measure, partial) or measure.func is not _kernel:
        return {}
    backend, size, make = measure.args[:3]
    kind = getattr(make, "func", make)
    return {"backend": backend, "size": size, "case": getattr(kind, "__name__", str(kind))}


if __name__ == "__main__":
    sys.exit(main())
