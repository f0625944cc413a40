"""What the machine can do, measured, and how soon it could do a step: bytes over bandwidth,
products over their rate.
"""

import ctypes
import mmap
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from engine.checkpoint.model_config import ModelConfig
from ops.cpu import build

BYTES_PER_WEIGHT = 2  # bfloat16, as is the cache
# Of a weight's code, and its part in the scale of a group of 64; embeddings and the head have at
# least 8 bits.
QUANTIZED_BYTES = {"int8": 1 + 2 / 64, "int4": 1 / 2 + 2 / 64}
PROBE_ROUNDS = 5
ARRAY_ELEMENTS = 32 << 20  # of 8 bytes: no cache holds it
PRODUCT_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes a second that are read of a large array, and operations a second of torch's product of
    `product_dtype`.
    """

    bandwidth: float
    product_rate: float

    def mean(self, other: "Machine") -> "Machine":
        return Machine(
            (self.bandwidth + other.bandwidth) / 2,
            (self.product_rate + other.product_rate) / 2,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """`rows` tokens are computed, `sampled` of them for their logits; `context` tokens are read
    from the cache, and `pairs` of a query and a key are multiplied.
    """

    rows: int
    sampled: int
    context: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes that floors follow from. Norms and biases are left out."""

    layer_weights: int  # elements of the layers' matrices
    head_weights: int
    cache_bytes: int  # a token
    pair_operations: int  # of a query's product with a key and of the weight with its value, in all layers and heads
    layer_bytes: float = BYTES_PER_WEIGHT  # a weight
    head_bytes: float = BYTES_PER_WEIGHT

    @classmethod
    def load(cls, folder: str, quantization: str | None = None) -> Self:
        model = ModelConfig.load(folder)
        heads, key_value = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
        attention = model.hidden_size * (2 * heads + 2 * key_value)
        mlp = 3 * model.hidden_size * model.hf_config["intermediate_size"]
        return cls(
            layer_weights=model.num_hidden_layers * (attention + mlp),
            head_weights=model.vocab_size * model.hidden_size,
            cache_bytes=model.num_hidden_layers * 2 * key_value * BYTES_PER_WEIGHT,
            pair_operations=model.num_hidden_layers * 4 * heads,
            layer_bytes=QUANTIZED_BYTES[quantization] if quantization else BYTES_PER_WEIGHT,
            head_bytes=QUANTIZED_BYTES["int8"] if quantization else BYTES_PER_WEIGHT,
        )

    def floor_seconds(self, steps: Sequence[Step], machine: Machine) -> float:
        """No step can be done sooner than its weights and cache are read, nor than its matrix
        products are computed.
        """
        total = 0.0
        for step in steps:
            weights = self.layer_bytes * self.layer_weights + self.head_bytes * self.head_weights
            read = weights + step.context * self.cache_bytes
            computed = 2 * (step.rows * self.layer_weights + step.sampled * self.head_weights)
            computed += step.pairs * self.pair_operations
            total += max(read / machine.bandwidth, computed / machine.product_rate)
        return total


def product_dtype() -> torch.dtype:
    """In which this machine multiplies fastest: torch has a product in bfloat16 take fifty times as
    long as in float32 where the processor has no instruction for it.
    """
    return torch.bfloat16 if "avx512_bf16" in build.runnable_levels() else torch.float32


class Probe:
    """Measures the machine, with torch's number of threads. Raises BuildError without a C++
    compiler.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "probe.so"
            source = Path(__file__).with_name("read_bandwidth.cpp")
            flags = ["-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"]
            subprocess.run([build.find_compiler(), *flags, str(source), "-o", str(library)], check=True)
            self._library = ctypes.CDLL(str(library))
        self._library.read_array.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
        pages = mmap.mmap(-1, 8 * ARRAY_ELEMENTS, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)  # as packed weights have
        self._array = torch.frombuffer(pages, dtype=torch.int64).fill_(1)
        self._factors = torch.randn(2, PRODUCT_SIZE, PRODUCT_SIZE).to(product_dtype())

    def measure(self) -> Machine:
        array = self._array.data_ptr(), self._array.numel(), torch.get_num_threads()
        reading = _median_seconds(lambda: self._library.read_array(*array))
        multiplying = _median_seconds(lambda: self._factors[0] @ self._factors[1])
        return Machine(8 * ARRAY_ELEMENTS / reading, 2 * PRODUCT_SIZE**3 / multiplying)


def _median_seconds(function: Callable[[], object]) -> float:
    function()
    times = []
    for _ in range(PROBE_ROUNDS):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
