"""Time a step's way from the driver to its workers and back: `python -m
tests.benchmarks.bench_step_channel`.

The workers do nothing. Each worker is a process of its own, as under Ray. The step is a decode of
16 sequences (about 2.6 KB), its answer 16 tokens.
"""

import argparse
import multiprocessing
import time

import numpy as np

from cluster.sockets.listener import Listener, connect
from cluster.workers.steps.deadline import StepDeadline
from cluster.workers.steps.step_channel import StepChannel
from cluster.workers.steps.step_loop import serve_steps
from engine.outputs import NO_FETCHED, SamplerOutput
from engine.step import ExecuteModelRequest, LateMasks, none_follow
from tests.engine.worker.steps import decode_step, make_output

WARM_UP_STEPS = 200


class IdleWorker:
    """Answers at once; rank 0 speaks for the last stage."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    is_asynchronous = False

    def execute(self, request: ExecuteModelRequest, late_masks: LateMasks) -> SamplerOutput | None:
        return make_output(request, request.input_ids) if self._rank == 0 else None

    def launch(self, request: ExecuteModelRequest, late_masks: LateMasks) -> ExecuteModelRequest:
        return request

    def finish(self, step: ExecuteModelRequest) -> SamplerOutput | None:
        return self.execute(step, none_follow)

    def take_fetched(self) -> np.ndarray:
        return NO_FETCHED

    def blames_peer(self, error: Exception) -> bool:
        return False

    def is_beyond_repair(self, error: Exception) -> bool:
        return True


def run_worker(address: str, token: bytes, rank: int) -> None:
    serve_steps(connect(address, token, str(rank)), IdleWorker(rank))


def measure(num_ranks: int, num_steps: int, host: str | None) -> np.ndarray:
    """Seconds of each of num_steps steps. `host` None: over a Unix socket."""
    listener = Listener(host)
    spawn = multiprocessing.get_context("spawn")
    processes = [
        spawn.Process(target=run_worker, args=(listener.address, listener.token, rank)) for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    connections = dict(listener.accept(time.monotonic() + 60) for _ in processes)
    listener.close()
    in_order = [connections[str(rank)] for rank in range(num_ranks)]
    channel = StepChannel(in_order, ["here"] * num_ranks, StepDeadline())
    requests = [decode_step(step, num_seqs=16) for step in range(WARM_UP_STEPS + num_steps)]
    seconds = []
    for request in requests:
        started = time.perf_counter()
        channel.submit(request).result()
        seconds.append(time.perf_counter() - started)
    channel.close()
    for process in processes:
        process.join()
    return np.array(seconds[WARM_UP_STEPS:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    for name, host in (("unix", None), ("tcp", "127.0.0.1")):
        micros = measure(arguments.ranks, arguments.steps, host) * 1e6
        p50, p99 = np.percentile(micros, [50, 99])
        print(f"driver -> {arguments.ranks} ranks -> driver over {name}: p50 {p50:.0f} us, p99 {p99:.0f} us")


if __name__ == "__main__":
    main()
