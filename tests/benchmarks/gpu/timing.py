"""Seconds of a call, and what the device can do at most, measured in the same run."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Device:
    """A device's rates: bytes a second of a large copy (read and written), at the fastest of the
    ways that torch has, operations a second of a large bf16 product.
    """

    copy_rate: float
    product_rate: float


def measure_device(device: torch.device, repeats: int) -> Device:
    size = (1 << 30) if device.type == "cuda" else (1 << 20)
    source = torch.zeros(size // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    ways = (lambda: target.copy_(source), lambda: torch.neg(source, out=target))  # the driver's copy, and a kernel's
    copy = min(seconds([way], device, repeats) for way in ways)
    width = 8192 if device.type == "cuda" else 128
    left, right = (torch.randn(width, width, device=device).bfloat16() for _ in range(2))
    product = seconds([lambda: left @ right], device, repeats)
    return Device(2 * size / copy, 2 * width**3 / product)


def seconds(calls: Sequence[Call], device: torch.device, repeats: int) -> float:
    """The median time of one of `calls`, which are alike but for the memory they use: together more
    than a cache holds.

    On a GPU they are one CUDA graph, so the host's time is not counted.
    """
    if device.type != "cuda":
        return statistics.median(_on_host(call) for call in calls for _ in range(repeats))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return statistics.median(_replay(graph) for _ in range(repeats)) / len(calls)


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def _on_host(call: Call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
