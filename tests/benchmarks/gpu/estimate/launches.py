"""What a step would launch on a GPU: launchers run on tensors without memory, and what they launch
is written down.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from ops.kernels.device import capability, num_processors
from tests.benchmarks.gpu.estimate.gpus import Gpu

WITHOUT_WORK = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "lift_fresh"}


@dataclass(frozen=True, slots=True)
class Launch:
    """`values`: arguments, constants and options by name; torch's own operations have `tensors`."""

    kernel: str
    programs: int
    values: dict[str, Any]


@contextmanager
def recording(gpu: Gpu) -> Iterator[list[Launch]]:
    """The launches of what is computed meanwhile, on `meta` tensors, as if that GPU were there."""
    launches: list[Launch] = []

    def record(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        values = dict(zip(kernel.arg_names, arguments, strict=False)) | options
        sizes = grid(values) if callable(grid) else grid
        launches.append(Launch(kernel.fn.__name__, math.prod(sizes), values))

    properties = SimpleNamespace(multi_processor_count=gpu.processors)
    with (
        patch.object(JITFunction, "run", record),
        patch.object(torch.cuda, "get_device_capability", lambda device: gpu.capability),
        patch.object(torch.cuda, "get_device_properties", lambda device: properties),
        _Torch(launches),
    ):
        capability.cache_clear()
        num_processors.cache_clear()
        try:
            yield launches
        finally:
            capability.cache_clear()
            num_processors.cache_clear()


def _is_view(func: Any, given: list[Tensor], made: list[Tensor]) -> bool:
    """Whether nothing is computed. Some operations, such as `to`, may give a view or not."""
    may_be = any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
    storages = {each.untyped_storage()._cdata for each in given}
    return may_be and all(each.untyped_storage()._cdata in storages for each in made)


class _Torch(TorchDispatchMode):
    """Writes down torch's own operations, but for views and what only makes room."""

    def __init__(self, launches: list[Launch]) -> None:
        super().__init__()
        self._launches = launches

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        results = result if isinstance(result, tuple | list) else (result,)
        given = [each for each in args if isinstance(each, Tensor)]
        for group in args:
            if isinstance(group, list | tuple):
                given += [each for each in group if isinstance(each, Tensor)]
        made = [each for each in results if isinstance(each, Tensor)]
        if name not in WITHOUT_WORK and not _is_view(func, given, made):
            tensors = given + made
            self._launches.append(Launch(f"torch {name}", 0, {"tensors": tensors}))
        return result
