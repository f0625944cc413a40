"""How fast a single stream is decoded beside processes that keep a core busy each: `python -m
tests.benchmarks.bench_neighbour`.

The work is W1, on random bf16 weights of Qwen2.5-0.5B's shape, by Squadron and, where its Python
package is installed, by llama.cpp. Quiet runs, runs beside one busy process and runs beside two
take turns, so that what else the machine does strikes all of them. A fair share is what remains if
a thread gets as much time as a busy process. Figures are medians.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from cluster.bench.workload import Lengths, random_works
from cluster.progress import progress
from engine.checkpoint.model_config import ModelConfig
from tests.benchmarks import llama_cpp
from tests.benchmarks.apart import Apart
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.benchmarks.peers import Peer, Squadron
from tests.benchmarks.works import COMPARISONS, SEED

WORK = COMPARISONS["W1"]
# Ends by itself if whoever started it has been killed.
SPIN = "import os, sys\nprint(flush=True)\nwhile os.getppid() == int(sys.argv[1]): sum(range(10**6))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--busy", type=int, nargs="*", default=[1, 2], help="numbers of busy processes (default: 1 2)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--model", help="folder of a checkpoint; default: random weights of the 0.5B shape")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.model or cached_folder(SHAPE)
    numbers = [0, *options.busy]
    with ExitStack() as stack:
        peers: dict[str, Peer] = {"squadron": stack.enter_context(Apart(Squadron, folder))}
        if llama_cpp.is_installed():
            peers["llama.cpp"] = stack.enter_context(Apart(llama_cpp.LlamaCpp, folder))
        rates = measure(peers, numbers, ModelConfig.load(folder).vocab_size, options.rounds)
    print(f"{WORK}, {options.threads} threads on {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    for name in peers:
        quiet = statistics.median(rates[name, 0])
        for number in numbers:
            rate = statistics.median(rates[name, number])
            beside = f"beside {number} busy" if number else "quiet"
            share = f"{rate / quiet:5.0%} of quiet; a fair share is {fair_share(options.threads, number):.0%}"
            print(f"  {name:12} {beside:16} {rate:7.1f} tok/s  {share}")


def measure(
    peers: dict[str, Peer], numbers: Sequence[int], vocab_size: int, rounds: int
) -> dict[tuple[str, int], list[float]]:
    """Tokens a second of each run of each peer beside so many busy processes."""
    random = np.random.default_rng(SEED)
    inputs, outputs = Lengths(WORK.input_len, WORK.input_len), Lengths(WORK.output_len, WORK.output_len)
    rates: dict[tuple[str, int], list[float]] = {(name, number): [] for name in peers for number in numbers}
    for peer in peers.values():
        peer.run(random_works(random, WORK.num_requests, inputs, outputs, vocab_size))
    with progress(total=rounds * len(rates), desc=str(WORK)) as bar:
        for _ in range(rounds):
            for number in numbers:
                with busy_processes(number):
                    for name, peer in peers.items():
                        works = random_works(random, WORK.num_requests, inputs, outputs, vocab_size)
                        rates[name, number].append(WORK.rate(peer.run(works)))
                        bar.update()
    return rates


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """So many of them, which have begun to spin."""
    command = [sys.executable, "-S", "-c", SPIN, str(os.getpid())]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(number)]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            with process:
                process.kill()


def fair_share(threads: int, busy: int) -> float:
    """Of the cores' time, if a thread gets as much as a busy process."""
    cores = len(os.sched_getaffinity(0))
    return min(1.0, cores / (threads + busy)) / min(1.0, cores / threads)


if __name__ == "__main__":
    main()
