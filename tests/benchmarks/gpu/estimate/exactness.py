"""What exactness costs, estimated: steps with our products against steps with cuBLAS's, of which it
is assumed that they reach the device's rates at any size. So it costs this much at most.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor

from ops import kernels
from ops.interface import Ops
from ops.kernels import fast
from ops.kernels.matmul.linear import TreeWeight
from tests.benchmarks.gpu.estimate.costs import Step
from tests.benchmarks.gpu.estimate.gpus import GPUS
from tests.benchmarks.gpu.estimate.steps import config_of, estimate, make_model


def _float32(x: Tensor, weight: Tensor) -> Tensor:
    """As `fast.linear_float32` on a GPU."""
    return torch.mm(x, weight.T, out_dtype=torch.float32)


def _tree(x: Tensor, weight: TreeWeight) -> Tensor:
    assert isinstance(weight.weight, Tensor)
    return _float32(x, weight.weight)


def fast_ops() -> Ops:
    """The fast backend, whose tensors without memory have a GPU's products."""
    functions = {name: getattr(fast, name) for name in fast.__all__}
    own = {"linear_float32": _float32, "linear_tree": _tree, "linear_leaves": _tree}
    return cast(Ops, SimpleNamespace(**(functions | own)))


def lines(shapes: list[str], gpu_name: str, batches: list[int], context: int) -> Iterator[str]:
    """As `steps.lines`: exact and fast, and the difference in percent of the fast one."""
    yield f"{'exactness':<46}{'exact, ms':>12}{'fast, ms':>12}{'costs, %':>12}"
    for shape in shapes:
        exact, other = (make_model(config_of(shape), ops) for ops in (kernels, fast_ops()))
        for batch in batches:
            ours, theirs = (estimate(model, Step(batch, context), GPUS[gpu_name]).seconds for model in (exact, other))
            name = f"{Path(shape).name} batch {batch}"
            yield f"{name:<46}{1e3 * ours:>12.2f}{1e3 * theirs:>12.2f}{100 * (ours / theirs - 1):>12.1f}"
