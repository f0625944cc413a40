"""How long a rank takes to load its weights, and what it keeps in memory: `python -m
tests.benchmarks.bench_start`.

Random bf16 weights of Qwen2.5-0.5B's shape, read from the page cache, in a process of its own each
time. Resident bytes are counted over those of the process before it loads (Python and torch), once
the whole cache has been written to.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch

from cluster.checkpoint.plan import make_plan
from cluster.progress import progress
from engine.config import EngineConfig
from engine.worker.worker import Worker
from tests.benchmarks.folders import SHAPE, cached_folder

CACHE_BYTES = 512 << 20
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument(
        "--measure", help=argparse.SUPPRESS
    )  # a checkpoint's folder: load it here, and print what was seen
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.quantization)))
        return
    folder = cached_folder(SHAPE)
    command = [sys.executable, "-m", "tests.benchmarks.bench_start", "--measure", folder]
    command += ["--quantization", options.quantization] if options.quantization else []
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        for _ in progress(iterable=range(options.repeats + 1), desc="loading")
    ][1:]  # the first has filled the page cache
    seconds, process, resident, peak, weights = (
        statistics.median(run[name] for run in runs) for name in ("seconds", "process", "resident", "peak", "weights")
    )
    needed = weights + CACHE_BYTES
    print(f"loaded in {seconds:.2f} s ({min(run['seconds'] for run in runs):.2f} at best)")
    print(
        f"weights {weights / MIB:.0f} MiB and cache {CACHE_BYTES / MIB:.0f} MiB; resident {resident / MIB:.0f} MiB "
        f"over the process' {process / MIB:.0f}: {resident / needed:.2f}×; at most {peak / MIB:.0f} MiB while loading"
    )


def measure(folder: str, quantization: str | None) -> dict[str, float]:
    arguments = {"quantization": quantization} if quantization else {}
    config = EngineConfig.create(
        model=folder, dtype="bfloat16", device="cpu", swap_space=0, kv_cache_memory_bytes=CACHE_BYTES, **arguments
    )
    torch.zeros(1).add_(1)
    process = _memory("VmRSS")
    started = time.perf_counter()
    worker = Worker(config)
    seconds = time.perf_counter() - started
    peak = _memory("VmHWM")
    worker.initialize_cache(*worker.determine_num_available_blocks())
    for layer in worker._runner._layers._cache.device:
        for tensor in layer:
            tensor.fill_(0)
    resident = _memory("VmRSS")
    return {
        "seconds": seconds,
        "process": process,
        "resident": resident - process,
        "peak": peak - process,
        "weights": make_plan(config).weight_bytes,
    }


def _memory(name: str) -> int:
    """Bytes: VmRSS, what is resident; VmHWM, what was at most."""
    with open("/proc/self/status", encoding="utf-8") as status:
        (line,) = (line for line in status if line.startswith(name))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
