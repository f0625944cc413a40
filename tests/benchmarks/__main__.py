"""Every benchmark, or those that are named: `make bench`, or `python -m tests.benchmarks [--quick]
[ITEM ...]`.

W1-W3 are done by Squadron, by transformers (in float32 where the processor has no product of bf16)
and, where they are installed, by llama.cpp and vLLM in turn, on random bf16 weights of
Qwen2.5-0.5B's shape, between two measurements of what the machine can do; with --quantization, by
Squadron with quantized weights, beside itself without. W4 is many requests of mixed lengths on the
demo checkpoint, with steps built ahead of their predecessors' results and without; W4-0.5b is the
same on the larger shape. Figures are medians.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import ops
from cluster.bench.environment import environment
from cluster.checkpoint.dummy import DEMO
from tests.benchmarks import llama_cpp, vllm_peer
from tests.benchmarks.apart import Apart
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.benchmarks.peers import Peer, Squadron
from tests.benchmarks.transformers_peer import Transformers
from tests.benchmarks.works import COMPARISONS, compare, mixed

ROOT = Path(__file__).resolve().parents[2]
MIXED = {"W4": "demo", "W4-0.5b": SHAPE}
LARGER = ["--model", SHAPE, "--requests", "128", "--repeats", "1"]
# Programs of their own, with their arguments, and those that make them quick.
MODULES: dict[str, tuple[str, list[str], list[str]]] = {
    "driver": ("bench_driver", [], ["--steps", "20"]),
    "driver-scale": ("bench_driver_scale", [], ["--steps", "4"]),
    "deltas": ("bench_deltas", [], ["--steps", "20"]),
    "channel": ("bench_step_channel", [], ["--steps", "200"]),
    "adapters": ("bench_adapters", [], ["--repeats", "20"]),
    "gateway": ("bench_gateway", [], ["--tokens", "20"]),
    "gateways": ("gateway.scaling", [], ["--tokens", "20"]),
    "store": ("gateway.store", [], ["--shards", "1", "--seconds", "0.5"]),
    "routing": ("routing.simulate", [], ["--engines", "8", "--gateways", "2", "--streams", "200", "--seconds", "4"]),
    "http": ("http.bench", [], ["--requests", "128", "--output-len", "16", "--repeats", "1"]),
    "http-0.5b": ("http.bench", LARGER, ["--output-len", "4"]),
    "kernels": ("bench_cpu_kernels", [], ["--repeats", "1", "--only", "decode 1"]),
    "structured": ("bench_structured", [], ["--steps", "8", "--rounds", "1", "--model", "demo"]),
    "penalties": ("bench_penalties", [], ["--steps", "8", "--rounds", "1", "--model", "demo"]),
    "speculation": ("bench_speculation", [], ["--tokens", "64", "--rounds", "1", "--model", "demo", "--draft", "1"]),
    "tiers": ("bench_tiers", [], ["--model", "demo", "--conversations", "4", "--message", "32", "--tokens", "4"]),
    "decode-wait": ("bench_decode_wait", [], ["--rounds", "1", "--model", "demo", "--input-len", "400"]),
    "prefill": ("bench_prefill", [], ["--model", "demo", "--streams", "2", "--prompts", "2", "--length", "128"]),
    "transports": ("bench_transports", [], ["--seconds", "0.2"]),
    "drain": ("bench_drain", [], ["--model", "demo", "--streams", "2", "--length", "128", "--tokens", "32"]),
    "autoscaling": ("bench_autoscaling", [], []),
    "neighbour": ("bench_neighbour", [], ["--rounds", "1", "--model", str(DEMO)]),
    "start": ("bench_start", [], ["--repeats", "1"]),
    "sources": ("bench_sources", [], ["--repeats", "1", "--model", "demo"]),
    "published": ("bench_published", [], ["--rounds", "1", "--model", "demo", "--formats", "awq"]),
    "sharding": ("bench_sharding", [], ["--rounds", "1", "--model", str(DEMO)]),
}
ITEMS = (*MODULES, *COMPARISONS, *MIXED)
LLAMA_CPP = {"int8": "Q8_0", "int4": "Q4_0"}  # what is beside a `--quantization`
STEADY = 1.1  # between the same probe's figures before and after a work
DEFAULT_ITEMS = tuple(item for item in ITEMS if item != "W4-0.5b")


def main() -> int:
    options = _parse()
    repeats = options.repeats or (1 if options.quick else 5)
    cpus = sorted(os.sched_getaffinity(0))[: options.threads]
    os.sched_setaffinity(0, cpus)  # what the engine, torch and every process below go by
    torch.set_num_threads(len(cpus))
    report: dict[str, Any] = {**environment(), "commit": _commit(), "threads": len(cpus), "backend": _backend()}
    report |= {"quick": options.quick, "quantization": options.quantization, "repeats": repeats, "items": {}}
    print(_heading(report), flush=True)
    results = report["items"]
    for item in (item for item in MODULES if item in options.items):
        results[item] = run_module(item, options.quick)
        _write(options.output, report)
    compared = {item: work for item, work in COMPARISONS.items() if item in options.items}
    if compared:
        folder = cached_folder("demo" if options.quick else SHAPE)
        with ExitStack() as stack:
            peers: dict[str, Peer] = {
                "squadron": stack.enter_context(Apart(Squadron, folder, quantization=options.quantization))
            }
            if options.quantization:
                peers["bfloat16"] = stack.enter_context(Apart(Squadron, folder))
            peers["transformers"] = stack.enter_context(Apart(Transformers, folder))
            if llama_cpp.is_installed():
                theirs = LLAMA_CPP.get(options.quantization)
                peers["llama.cpp"] = stack.enter_context(Apart(llama_cpp.LlamaCpp, folder, theirs))
            if vllm_peer.is_installed():
                peers["vLLM"] = stack.enter_context(vllm_peer.running(folder))
            for item, work in compared.items():
                smaller = work.smaller() if options.quick else work
                results[item] = compare(smaller, peers, folder, repeats, options.quantization)
                _write(options.output, report)
    for item in (item for item in MIXED if item in options.items):
        results[item] = mixed(cached_folder(MIXED[item]), 24 if options.quick else 256, repeats)
        _write(options.output, report)
    print(f"\n{table(results)}\n\nWritten to {options.output}")
    return int(any(result.get("status") for result in results.values()))


def run_module(item: str, quick: bool) -> dict[str, Any]:
    """What a program of its own prints, which is shown as it comes."""
    module, arguments, quick_arguments = MODULES[item]
    command = ["-m", f"tests.benchmarks.{module}", *arguments, *(quick_arguments if quick else [])]
    print(f"\n{item}: python {' '.join(command)}", flush=True)
    lines = []
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print("  " + line, end="", flush=True)
            lines.append(line.rstrip())
    return {"command": command, "output": lines, "status": process.returncode}


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each work: tokens a second of ours and beside, the ratio, and our share of the
    floor.
    """
    rows = [f"{'':8}{'tok/s':<48}{'squadron':>10}   {'beside':<24}{'ratio':>7}{'floor':>10}{'share':>7}"]
    for item, result in results.items():
        if "tok_per_s" not in result:
            continue
        medians = {name: statistics.median(rates) for name, rates in result["tok_per_s"].items()}
        ours = medians.pop("squadron")
        floor = result.get("floor")
        share = f"{floor:10.1f}{ours / floor:7.0%}" if floor else ""
        for name, theirs in medians.items():
            beside = f"{name} {theirs:.1f}"
            rows.append(f"{item:8}{result['work']:<48}{ours:10.1f}   {beside:<24}{ours / theirs:6.2f}×{share}")
        if floor:
            rows.append(f"{'':8}{_probes(result['before'], result['after'])}")
    return "\n".join(rows) if len(rows) > 1 else ""


def _probes(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    shown = (
        f"read {before['read_gb_per_s']:.1f} and {after['read_gb_per_s']:.1f} GB/s, "
        f"product {before['product_gflop_per_s']:.0f} and {after['product_gflop_per_s']:.0f} GFLOP/s, before and after"
    )
    drift = max(max(before[name], after[name]) / min(before[name], after[name]) for name in before)
    return shown + (": unsteady, so that the share means little" if drift > STEADY else "")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("items", nargs="*", metavar="ITEM", help=f"of {', '.join(ITEMS)}; default: all but W4-0.5b")
    parser.add_argument("--quick", action="store_true", help="a smoke test: small works, once, on the demo checkpoint")
    parser.add_argument("--quantization", choices=("int8", "int4"), help="of Squadron's weights in W1-W3")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each work (default: 5)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="and CPUs (default: 2)")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "benchmarks.json", metavar="FILE")
    options = parser.parse_args()
    unknown = [item for item in options.items if item not in ITEMS]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(ITEMS)}")
    options.items = options.items or list(DEFAULT_ITEMS)
    return options


def _backend() -> str:
    backend = ops.select("auto", torch.device("cpu"))
    return f"{backend.NAME} {getattr(backend, 'ISA', '')}".strip()


def _commit() -> str:
    if shutil.which("git") is None:
        return ""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _heading(report: Mapping[str, Any]) -> str:
    machine, versions = report["machine"], report["versions"]
    lines = [
        f"{machine['cpu']}, {report['threads']} threads, ops backend {report['backend']}, "
        f"torch {versions['torch']}, transformers {versions['transformers']}, {report['date']}"
    ]
    if machine["load_average"] > report["threads"] / 4:
        lines.append(f"Other work runs here (load average {machine['load_average']}): trust no figure but the ratios")
    if report["quick"]:
        lines.append("Quick: small works on the demo checkpoint, which say nothing of speed")
    return "\n".join(lines)


def _write(path: Path, report: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
