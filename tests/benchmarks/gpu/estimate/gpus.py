"""GPUs that steps are estimated for: what their makers say, times what such devices are known to
reach. `python -m tests.benchmarks.gpu` measures the rates of the one that is there.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    capability: tuple[int, int]
    processors: int
    bytes_per_s: float
    operations_per_s: float  # of bf16 products, a multiplication and an addition each one
    shared: int  # bytes a processor has


GPUS = {
    "h200": Gpu((9, 0), 132, 4.3e12, 7.9e14, 228 << 10),
    "h100": Gpu((9, 0), 132, 3.0e12, 7.9e14, 228 << 10),
    "a100": Gpu((8, 0), 108, 1.7e12, 2.6e14, 164 << 10),
    "l40s": Gpu((8, 9), 142, 0.75e12, 3.0e14, 100 << 10),
    "b200": Gpu((10, 0), 148, 7.0e12, 1.8e15, 228 << 10),
    "rtx5090": Gpu((12, 0), 170, 1.6e12, 2.0e14, 100 << 10),
}
