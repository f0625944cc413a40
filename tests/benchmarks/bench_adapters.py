"""What adapters cost: `python -m tests.benchmarks.bench_adapters`.

Decode steps of Qwen2.5-0.5B's shape (random bf16 weights), with adapters of all linear layers for
every row, for one row, and for none, by turns: the ratios of their processor times, and of their
wall times, step by step. Also: how long a rank takes to read an adapter.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cluster.progress import progress
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.request import Adapter
from engine.step import ExecuteModelRequest
from engine.worker.worker import Worker
from parallel.spec import read
from tests.adapters import save_adapter
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.engine.worker.steps import decode_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--quantization", choices=["int8", "int4"])
    options = parser.parse_args()
    arguments = {"quantization": options.quantization} if options.quantization else {}
    config = EngineConfig.create(
        model=cached_folder(SHAPE),
        dtype="bfloat16",
        device="cpu",
        swap_space=0,
        max_model_len=256,
        enable_lora=True,
        max_loras=options.adapters,
        max_lora_rank=options.rank,
        **arguments,
    )
    worker = Worker(config)
    worker.initialize_cache(8 * options.rows, 0)
    with TemporaryDirectory() as folder:
        shapes = read(ModelConfig.load(config.model).hf_config).shapes()
        adapters = [
            save_adapter(Path(folder) / str(index), shapes, rank=options.rank, seed=index)
            for index in range(options.adapters)
        ]
        for number, adapter in enumerate(adapters):
            seconds = timed(lambda one=adapter, step=number: worker.execute(with_adapters(step, 1, [one])))[1]
            print(f"the first step with adapter {number}: {seconds * 1000:.0f} ms")
        report(worker, adapters, options.rows, options.repeats)


def report(worker: Worker, adapters: list[Adapter], num_rows: int, repeats: int) -> None:
    rounds = []
    for step in progress(iterable=range(repeats), desc="steps"):
        requests = [
            decode_step(3 * step, num_rows),
            with_adapters(3 * step + 1, num_rows, adapters[:1], num_adapted=1),
            with_adapters(3 * step + 2, num_rows, adapters, num_adapted=num_rows),
        ]
        rounds.append([timed(lambda one=request: worker.execute(one)) for request in requests])
    rounds = rounds[repeats // 10 :]
    for index, name in enumerate(("processor", "wall")):
        plain = statistics.median(times[0][index] for times in rounds)
        print(f"{num_rows} rows: {name} time of a step {plain * 1000:.1f} ms without adapters")
        for kind, title in ((1, "one of them with one"), (2, f"all with one of {len(adapters)}")):
            adapted = statistics.median(times[kind][index] for times in rounds)
            ratio = statistics.median(times[kind][index] / times[0][index] for times in rounds)
            print(f"  {adapted * 1000:.1f} ms {title}; median ratio {ratio:.2f}")


def with_adapters(step: int, num_rows: int, adapters: list[Adapter], *, num_adapted: int) -> ExecuteModelRequest:
    """The first rows have them by turns."""
    runs = [(row, row + 1, row % len(adapters)) for row in range(num_adapted)]
    return replace(
        decode_step(step, num_rows),
        adapter_runs=np.array(runs, np.int32),
        adapter_digests=[adapter.digest for adapter in adapters],
        adapter_folders=[adapter.folder for adapter in adapters],
    )


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of this process' threads, and of the clock."""
    process, clock = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - process, time.perf_counter() - clock


if __name__ == "__main__":
    main()
