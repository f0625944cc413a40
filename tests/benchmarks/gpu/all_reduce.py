"""Sums over ranks, one on each GPU, against what the link between two of them carries; rehearsed by
ranks on CPU.
"""

import multiprocessing
import statistics
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch

from ops.tree import add_tree
from parallel.groups.connect import connect_directly
from parallel.groups.group import Group
from parallel.groups.meeting import open_store
from parallel.groups.mesh import Mesh
from parallel.groups.symmetric import CAPACITY_BYTES
from tests.benchmarks.gpu.timing import seconds

TIMEOUT = timedelta(seconds=60)
NUM_BYTES = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 32 << 20]
CALLS = 20  # timed together


def all_reduce_figures(device: torch.device, sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    """Microseconds a call by size, and the floor: all that a rank must hear of the others, at the
    link's rate.

    On one GPU two ranks share it, by turns: then the sums are compared with the tree's, and times
    mean nothing.
    """
    size = 2 if device.type == "cpu" else max(2, _largest_power_of_two(min(8, torch.cuda.device_count())))
    is_shared = device.type == "cuda" and torch.cuda.device_count() == 1
    if is_shared:  # NCCL, which adds what is larger, refuses ranks that share a GPU
        sizes, repeats = [num_bytes for num_bytes in sizes if num_bytes <= CAPACITY_BYTES], 1
    rate = _link_rate(device, repeats)
    store = open_store("127.0.0.1", 0, True, TIMEOUT)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = [
        (rank, size, store.port, device.type, sizes, repeats, theirs if rank == 0 else None) for rank in range(size)
    ]
    processes = [context.Process(target=_measure, args=each, daemon=True) for each in arguments]
    for process in processes:
        process.start()
    theirs.close()
    try:
        measured = ours.recv()
    finally:
        for process in processes:
            process.join(30)
            process.kill()
    if is_shared:
        return [{"ranks": size, "bytes": num_bytes, "on one GPU": "the tree's sums"} for num_bytes, _ in measured]
    # Half of each number's parts come by reducing, half by gathering: 2 (n - 1) / n of the numbers,
    # however it is done.
    heard = 2 * (size - 1) / size
    return [
        {"ranks": size, "bytes": num_bytes, "microseconds": 1e6 * taken, "of_floor": heard * num_bytes / rate / taken}
        for num_bytes, taken in measured
    ]


def _measure(
    rank: int, size: int, port: int, kind: str, sizes: list[int], repeats: int, pipe: Connection | None
) -> None:
    device = torch.device(kind, rank % torch.cuda.device_count()) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    store = open_store("127.0.0.1", port, False, TIMEOUT)
    group, _ = connect_directly(Mesh(size, 1), rank, store, device, TIMEOUT, "127.0.0.1")
    figures = []
    for num_bytes in sizes:
        parts = [torch.randn(num_bytes // 4, generator=torch.Generator().manual_seed(peer)) for peer in range(size)]
        x = parts[rank].to(device)
        if not torch.equal(group.all_reduce(x).cpu(), add_tree(parts)):
            raise AssertionError(f"{num_bytes} bytes: the ranks' sum is not the tree's")
        figures.append((num_bytes, statistics.median(_time(group, x) for _ in range(repeats))))
    if pipe is not None:
        pipe.send(figures)
    group.barrier()


def _time(group: Group, x: torch.Tensor) -> float:
    """Seconds a call, of several in a row."""
    group.barrier()
    _wait(x.device)
    started = time.perf_counter()
    for _ in range(CALLS):
        group.all_reduce(x)
    _wait(x.device)
    return (time.perf_counter() - started) / CALLS


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _link_rate(device: torch.device, repeats: int) -> float:
    """Bytes a second from one GPU to another; between CPU ranks, of a copy."""
    is_gpu = device.type == "cuda"
    far = torch.device("cuda", torch.cuda.device_count() - 1) if is_gpu else device
    source = torch.zeros(1 << (28 if is_gpu else 20), dtype=torch.uint8, device=far)
    target = torch.empty_like(source, device=torch.device("cuda", 0) if is_gpu else device)
    if not is_gpu:
        return source.nbytes / seconds([lambda: target.copy_(source)], device, repeats)
    rates = []
    for _ in range(repeats + 1):
        _wait(source.device)
        started = time.perf_counter()
        target.copy_(source)
        _wait(source.device)
        _wait(target.device)
        rates.append(source.nbytes / (time.perf_counter() - started))
    return statistics.median(rates[1:])


def _largest_power_of_two(limit: int) -> int:
    return 1 << (limit.bit_length() - 1) if limit else 0
