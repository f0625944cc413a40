"""What torch has for attention, on keys and values that lie one after the other: under the names of
our cases, so that the table has them side by side.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tests.benchmarks.gpu.case import Case, Make, Sizes
from tests.benchmarks.gpu.cases import attended, name_of_attention

# Neither pages nor sequences of several lengths: they have less to do than our kernels.
RIVALS = {
    "sdpa flash": SDPBackend.FLASH_ATTENTION,
    "sdpa cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa math": SDPBackend.MATH,  # for rehearsals
}


def rival_cases(rival: str, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[Make]:
    for copies, sequences, rows, context in (
        (2, sizes.sequences, 1, sizes.context),
        (8, 1, 1, sizes.context),
        (1, 1, sizes.prompt, sizes.prompt),
    ):
        yield partial(_cases, RIVALS[rival], sizes, device, dtype, copies, sequences, rows, context)


def _cases(
    backend: SDPBackend,
    sizes: Sizes,
    device: torch.device,
    dtype: torch.dtype,
    copies: int,
    sequences: int,
    rows: int,
    context: int,
) -> list[Case]:
    def random(heads: int, length: int) -> Tensor:
        return torch.randn(sequences, heads, length, sizes.head_dim, device=device).to(dtype)

    def case() -> Case:
        query, keys, values = (
            random(sizes.heads, rows),
            random(sizes.kv_heads, context),
            random(sizes.kv_heads, context),
        )

        def run() -> Tensor:
            with sdpa_kernel(backend):
                found = scaled_dot_product_attention(query, keys, values, is_causal=rows > 1, enable_gqa=True)
            return found.transpose(1, 2).flatten(0, 1)

        def want() -> Tensor:
            first = (each[0].transpose(0, 1) for each in (query, keys, values))
            return attended(*first, sizes.head_dim**-0.5)

        seen = rows * context - rows * (rows - 1) // 2
        num_bytes = keys.nbytes + values.nbytes + 2 * query.nbytes
        name = name_of_attention(sequences, rows, context)
        return Case(name, run, want, num_bytes, 4 * sequences * seen * sizes.heads * sizes.head_dim)

    return [case() for _ in range(copies)]
