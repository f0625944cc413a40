"""What adapters cost: `python -m tests.benchmarks.bench_adapters`.

Decode steps of Qwen2.5-0.5B's shape (random bf16 weights), with adapters of all linear layers for
every row, for one row, and for none, and without adapters enabled at all, by turns: the ratios of
their processor times, and of their wall times, to the last, step by step. Also: how long a rank
takes to read an adapter.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
    parser.add_argument("--repeats", type=int, default=20, help="steps of each kind in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of a rank; all cores")
    parser.add_argument("--quantization", choices=["int8", "int4"])
    options = parser.parse_args()
    arguments = {"quantization": options.quantization} if options.quantization else {}
    config = EngineConfig.create(
        model=cached_folder(SHAPE),
        dtype="bfloat16",
        device="cpu",
        swap_space=0,
        max_model_len=256,
        num_threads=options.threads,
        enable_lora=True,
        max_loras=options.adapters,
        max_lora_rank=options.rank,
        **arguments,
    )
    plain, worker = (started(each, options.rows) for each in (config.model_copy(update={"enable_lora": False}), config))
    with TemporaryDirectory() as folder:
        shapes = read(ModelConfig.load(config.model).hf_config).shapes()
        adapters = [
            save_adapter(Path(folder) / str(index), shapes, rank=options.rank, seed=index)
            for index in range(options.adapters)
        ]
        for number, adapter in enumerate(adapters):
            step = with_adapters(number, 1, [adapter], num_adapted=1)
            print(f"the first step with adapter {number}: {timed(worker, step)[1] * 1000:.0f} ms")
        kinds = {
            "adapters enabled, no row has one": (worker, partial(decode_step, num_seqs=options.rows)),
            "one row has one": (
                worker,
                partial(with_adapters, num_rows=options.rows, adapters=adapters[:1], num_adapted=1),
            ),
            f"all rows have one of {options.adapters}": (
                worker,
                partial(with_adapters, num_rows=options.rows, adapters=adapters, num_adapted=options.rows),
            ),
        }
        report(plain, kinds, options.rows, options.repeats, options.rounds)


def started(config: EngineConfig, num_rows: int) -> Worker:
    worker = Worker(config)
    worker.initialize_cache(8 * num_rows, 0)
    return worker


def report(
    plain: Worker,
    kinds: dict[str, tuple[Worker, Callable[[int], ExecuteModelRequest]]],
    num_rows: int,
    repeats: int,
    num_rounds: int,
) -> None:
    """Of each round the median of what steps took beside the plain one before; of rounds, all."""
    everything = {"adapters not enabled": (plain, partial(decode_step, num_seqs=num_rows)), **kinds}
    times = [[timed(worker, make(0)) for worker, make in everything.values()]]  # which capture tapes
    for number in progress(iterable=range(num_rounds * repeats), desc="steps"):
        times.append([timed(worker, make(1 + number)) for worker, make in everything.values()])
    rounds = [times[1 + start : 1 + start + repeats] for start in range(0, num_rounds * repeats, repeats)]
    for index, clock in enumerate(("processor", "wall")):
        plain_ms = statistics.median(step[0][index] for step in times[1:]) * 1000
        print(f"{num_rows} rows: {clock} time of a step {plain_ms:.1f} ms without adapters enabled")
        for kind, title in enumerate(kinds, start=1):
            ratios = sorted(statistics.median(step[kind][index] / step[0][index] for step in one) for one in rounds)
            spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
            print(f"  {title}: {statistics.median(ratios):.3f} times that, in {num_rounds} rounds {spread}")


def with_adapters(step: int, num_rows: int, adapters: list[Adapter], *, num_adapted: int) -> ExecuteModelRequest:
    """The first rows have them by turns."""
    runs = [(row, row + 1, row % len(adapters)) for row in range(num_adapted)]
    return replace(
        decode_step(step, num_rows),
        adapter_runs=np.array(runs, np.int32),
        adapter_digests=[adapter.digest for adapter in adapters],
        adapter_folders=[adapter.folder for adapter in adapters],
    )


def timed(worker: Worker, request: ExecuteModelRequest) -> tuple[float, float]:
    """Seconds of this process' threads, and of the clock."""
    process, clock = time.process_time(), time.perf_counter()
    worker.execute(request)
    return time.process_time() - process, time.perf_counter() - clock


if __name__ == "__main__":
    main()
