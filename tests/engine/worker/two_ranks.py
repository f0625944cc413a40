"""TP=2 in two processes, on one GPU where there is one. Exchange goes through host memory."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch

import ops
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest
from parallel.groups.connect import connect
from parallel.groups.meeting import open_store
from parallel.groups.mesh import Mesh
from parallel.groups.staged_group import stage
from tests.engine.worker.tiny import Execute, Shape, execute_on, make_runner

HOST = "127.0.0.1"
TIMEOUT = timedelta(seconds=60)
SHAPE = Shape(64, torch.bfloat16, torch.bfloat16)
PROMPTS = [[7 + 3 * k for k in range(19)], [5, 6, 7], [200], list(range(40, 56))]


def run_rank(rank: int, port: int, device_name: str, steps: Connection) -> None:
    """A rank's process: runs the steps that come until None does."""
    device = torch.device(device_name)
    torch.set_num_threads(1)
    store = open_store(HOST, port, is_master=False, timeout=TIMEOUT)
    mesh = Mesh(tp_size=2, pp_size=1)
    groups = connect(mesh, rank, store, device, TIMEOUT, HOST)
    if device.type == "cpu":  # there, ranks of a machine need no staging
        groups = stage(groups, device)
    execute = execute_on(make_runner(ops.select("auto", device), device, SHAPE, groups[0]))
    while (request := steps.recv()) is not None:
        steps.send(execute(request))


@contextmanager
def two_ranks(device_name: str) -> Iterator[Execute]:
    """What runs a step on both, and returns the first one's output."""
    context = multiprocessing.get_context("spawn")
    store: Any = open_store(HOST, 0, is_master=True, timeout=TIMEOUT)
    pipes = [context.Pipe() for _ in range(2)]
    ranks = [
        context.Process(target=run_rank, args=(rank, store.port, device_name, pipes[rank][1]), daemon=True)
        for rank in range(2)
    ]

    def execute(request: ExecuteModelRequest) -> SamplerOutput | None:
        for mine, _ in pipes:
            mine.send(request)
        outputs: list[SamplerOutput | None] = [mine.recv() for mine, _ in pipes]
        assert outputs[1] is None, "the first rank speaks"
        return outputs[0]

    for rank in ranks:
        rank.start()
    for _, theirs in pipes:
        theirs.close()  # so that a rank's death is the end of its pipe
    try:
        yield execute
        for mine, _ in pipes:
            mine.send(None)
        for rank in ranks:
            rank.join(TIMEOUT.total_seconds())
            assert rank.exitcode == 0
    finally:
        for rank in ranks:
            rank.kill()
