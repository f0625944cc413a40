"""What was measured, as the tables of docs/gpus.md: `python -m tests.benchmarks.gpu.document`
prints them, from the reports in `results`.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu.estimate.costs import Step
from tests.benchmarks.gpu.estimate.gpus import GPUS
from tests.benchmarks.gpu.estimate.steps import config_of, estimate, make_model

RESULTS = Path(__file__).parent / "results"
BENCH, SERVING = RESULTS / "h200.json", sorted(RESULTS.glob("serving-*.json"))
PLAIN = {"triton": "exact", "triton-fast": "cuBLAS"}  # names of backends
Figures = dict[str, Any]


def tables() -> Iterator[str]:
    """Lines of Markdown."""
    report = json.loads(BENCH.read_text(encoding="utf-8"))
    parts = {name: part["figures"] for name, part in report["parts"].items()}
    about = report["environment"]
    yield f"{about['device']}, {about['date'][:10]}, torch {about['torch']}, Triton {about['triton']}:"
    yield from _device(parts)
    yield ""
    yield from _steps(parts)
    yield ""
    yield from _loads(parts)
    yield ""
    yield from _kernels(parts)
    for path in SERVING:
        yield ""
        yield from _served(json.loads(path.read_text(encoding="utf-8")))


def _device(parts: dict[str, list[Figures]]) -> Iterator[str]:
    (rates,) = parts["device before"]
    yield (
        f"it copied {rates['copy'] / 1e12:.2f} TB/s (bytes read and written), and multiplied "
        f"{rates['product'] / 1e12:.0f} TFLOP/s of bf16."
    )


def _steps(parts: dict[str, list[Figures]]) -> Iterator[str]:
    """Of decode: on the clock, on the device, as estimated, and the least that there could be."""
    (rates,) = parts["device before"]
    yield from _head(
        "step", "ms", "device busy, ms", "launches", "estimate, ms", "floor, ms", "ms / floor", "cuBLAS, ms"
    )
    for shape in ("0.5b", "7b"):
        measured = parts.get(f"engine {shape} exact", [])
        fast = {
            each["batch"]: each["ms_a_step"] for each in parts.get(f"engine {shape} fast", []) if "ms_a_step" in each
        }
        model = make_model(config_of(shape))
        for each in measured:
            if "ms_a_step" not in each:
                continue
            busy = _with(measured, "us_busy", {"batch": each["batch"]})
            guess = estimate(model, Step(each["batch"], each["context"] + 64), GPUS["h200"])
            num_bytes = guess.floor * GPUS["h200"].bytes_per_s
            floor = 1e3 * num_bytes / rates["copy"]
            quick = fast.get(each["batch"])
            yield _row(
                f"{shape.upper()}, batch {each['batch']}",
                f"{each['ms_a_step']:.2f}",
                "" if busy is None else f"{busy['us_busy'] / 1e3:.2f}",
                "" if busy is None else f"{busy['launches']:.0f}",
                f"{1e3 * guess.seconds:.2f}",
                f"{floor:.2f}",
                f"{each['ms_a_step'] / floor:.2f}",
                "" if quick is None else f"{quick:.2f}",
            )


def _loads(parts: dict[str, list[Figures]]) -> Iterator[str]:
    has_peers = any("peer" in each for part in parts.values() for each in part)
    yield from _head("load", "exact", "cuBLAS", *(["transformers"] if has_peers else []))
    for shape in ("0.5b", "7b"):
        columns = [parts.get(f"engine {shape} {name}", []) for name in ("exact", "fast")]
        peers = [each for name, part in parts.items() if name.startswith(f"peers {shape}") for each in part]
        for key, told in (
            ("output_tok_per_s", "{requests} requests of {lengths} tokens in and out: tokens/s"),
            ("ms_a_step", "batch {batch}: ms a step"),
            ("ttft_ms_p50", "a prompt of {prompt} beside {decoding} that decode: ms to its first token"),
            ("gap_ms_max", "the longest gap of those, ms"),
        ):
            for each in (each for each in columns[0] if key in each):
                same = {name: each[name] for name in ("batch", "requests", "longest", "decoding") if name in each}
                others = [_with(column, key, same) for column in (columns[1], peers)]
                lengths = f"100 to {each.get('longest', 1024)}"
                digits = 0 if key == "output_tok_per_s" else 2
                values = [each, *others[: 1 + has_peers]]
                cells = ["" if value is None else f"{value[key]:,.{digits}f}" for value in values]
                yield _row(f"{shape.upper()}, " + told.format(**each, lengths=lengths), *cells)


def _with(figures: Iterable[Figures], key: str, same: Figures) -> Figures | None:
    """The best of those measured under the same load."""
    found = [each for each in figures if key in each and all(each.get(name) == same[name] for name in same)]
    return (max if key == "output_tok_per_s" else min)(found, key=lambda each: each[key]) if found else None


def _kernels(parts: dict[str, list[Figures]]) -> Iterator[str]:
    """Of the 7B model: microseconds, and shares of what the device could do at most."""
    figures = [each for part in parts.values() for each in part if "of_floor" in each and "case" in each]
    backends = list(dict.fromkeys(each["backend"] for each in figures))
    yield from _head("kernel, 7B", *(f"{PLAIN.get(backend, backend)}, µs (% of floor)" for backend in backends))
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for each in figures:
        told = f"{each['microseconds']:.1f} ({100 * each['of_floor']:.0f})"
        cells.setdefault((each["size"], each["case"]), {})[each["backend"]] = told
    for (size, case), by_backend in cells.items():
        if size == "7b":
            yield _row(case, *(by_backend.get(backend, "") for backend in backends))


def _served(report: Figures) -> Iterator[str]:
    yield from _head("whole server", "seen")
    for step in report["steps"]:
        if "failed" not in step and (told := _told(step)):
            yield _row(step["step"], told)


def _told(step: Figures) -> str:
    if "tok_per_s" in step:
        told = f"{step['tok_per_s']:,.0f} tokens/s"
        for name, text in (
            ("first_event_ms_p50", ", first event p50 {:.0f} ms"),
            ("gap_ms_p99", ", gap p99 {:.1f} ms"),
            ("gateway_us", ", gateway {:.0f} µs a token"),
        ):
            told += text.format(step[name]) if name in step else ""
        return told
    if "faults" in step:
        silent = max(step["silent_s"], default=0.0)
        changed = f"{step['lost_streams']} lost, {step['changed_streams']} changed, {step['duplicated_streams']} twice"
        return f"{step['faults']} killed under {step['streams']} streams: {changed}; silent for up to {silent:.1f} s"
    if "awake_mib" in step:
        return f"{step['awake_mib']:,} MiB, asleep {step['asleep_mib']:,}; woken in {step['woken_s']:.1f} s, same bits"
    if "same bits" in step:
        return f"{step['requests']} requests: the same bits" if step["same bits"] else "OTHER BITS"
    return f"ready after {step['ready_s']:.0f} s" if "ready_s" in step else ""


def _head(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield _row(*["---"] * len(names))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print(*tables(), sep="\n")
