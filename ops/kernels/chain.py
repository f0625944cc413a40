"""A chain of kernels that overlap: each starts while the one before still runs, and waits for its
results itself (CUDA's programmatic dependent launch).

A chained kernel first calls `begin`, before it reads or writes anything and before any of its
programs can end: the next one in the chain relies on that it has waited in its turn. Only
`fetch` may come before, and reads of weights, which no kernel of a chain writes.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from ops.kernels.device import HOPPER, capability


@triton.jit
def begin(CHAINED: tl.constexpr):
    """Wait until the kernel before has ended and its results can be read; then let the next one
    start.
    """
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def fetch(pointers):
    """Have the 128 bytes around each address brought to the device's L2 cache. Nothing is read: the
    addresses must exist, and what lies there may still change.
    """
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def chained(device: torch.device) -> dict[str, Any]:
    """Options of a chained kernel's launch there: older GPUs, and the interpreter, have no
    chains.
    """
    has_chains = device.type != "cpu" and capability(device)[0] >= HOPPER
    return {"CHAINED": True, "launch_pdl": True} if has_chains else {"CHAINED": False}
