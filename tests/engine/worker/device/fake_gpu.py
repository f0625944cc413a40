"""A GPU that is not there: its tensors have no memory (torch's device `meta`), kernels are not run,
and whatever would make the host wait for it is refused.

Host tensors are real. Copies to them and from them must be asynchronous, and of pinned memory:
that of tensors made with `pin_memory`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from engine.worker.device.device import Capture, Event, Replay, SideStream
from ops.kernels.device import capability, num_processors
from tests.engine.worker.round_trips import ROUND_TRIPS

DEVICE = torch.device("meta")


class Waits(AssertionError):
    """The host would wait for the device."""


class FakeGpu:
    """A `Device`. What is captured is computed once more, as its kernels are not run anyway."""

    torch_device = DEVICE
    is_asynchronous = True
    graphs_name = "graphs"
    graphs_hold_torch = True
    name = "a GPU that is not there"
    memory = None

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=DEVICE)

    def host_zeros(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def capture(self) -> Capture:
        def capture(compute: Callable[[], Tensor]) -> Replay:
            output = compute()
            return lambda: output

        return capture

    def side_stream(self) -> SideStream:
        stream: Any = SimpleNamespace(launch=lambda work: work(), wait=lambda mark: None, finish=self.synchronize)
        return stream

    def record_event(self) -> Event:
        event: Any = SimpleNamespace(synchronize=self.synchronize)
        return event

    def synchronize(self) -> None:
        raise Waits("synchronize waits for the device")


@contextmanager
def fake_gpu(compute: tuple[int, int] = (9, 0), processors: int = 132) -> Iterator[list[tuple[str, str]]]:
    """Tensors may be made on DEVICE meanwhile. What kernels are launched is noted: each one's name,
    and what Triton would compile it for.
    """
    launched: list[tuple[str, str]] = []
    properties = SimpleNamespace(multi_processor_count=processors)
    target = GPUTarget("cuda", 10 * compute[0] + compute[1], 32)

    def note(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        binder = kernel.device_caches[f"no device, sm_{target.arch}"][-1]
        _, specialization, chosen = binder(*arguments, **options)
        launched.append((kernel.fn.__name__, f"{specialization} {chosen}"))

    with (
        patch.object(JITFunction, "run", note),
        patch.object(driver, "_active", SimpleNamespace(get_current_target=lambda: target)),
        patch.object(torch.cuda, "get_device_capability", lambda device: compute),
        patch.object(torch.cuda, "get_device_properties", lambda device: properties),
    ):
        capability.cache_clear()
        num_processors.cache_clear()
        try:
            yield launched
        finally:
            capability.cache_clear()
            num_processors.cache_clear()


@contextmanager
def refusing_waits() -> Iterator[None]:
    """Waits is raised by what would make the host wait for the device."""
    pinning = _Pinning()
    with pinning, _Refusing(pinning.pinned):
        yield


class _Pinning(TorchFunctionMode):
    """Notes which host tensors were made with `pin_memory`: there is no such memory here."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: dict[int, Tensor] = {}  # by address; kept, so that none is given out again

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        is_pinned = kwargs.pop("pin_memory", False)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == DEVICE:
            raise Waits("numbers of Python are copied from memory that is not pinned, which waits for the device")
        result = func(*args, **kwargs)
        if is_pinned:
            self.pinned[result.untyped_storage().data_ptr()] = result
        return result


class _Refusing(TorchDispatchMode):
    def __init__(self, pinned: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._pinned = pinned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        if any(isinstance(each, Tensor) and each.is_meta for each in tree_leaves((args, kwargs))):
            _check(name, args)
        if name in ("to", "_to_copy"):
            given = {each.name: value for each, value in zip(func._schema.arguments, args, strict=False)} | kwargs
            target = given["other"].device if "other" in given else given.get("device")
            self._check_copy(args[0], target or args[0].device, given.get("non_blocking", False))
        if name == "copy_":
            self._check_copy(args[1], args[0].device, args[2] if len(args) > 2 else False, args[0])
            if args[1].is_meta:
                return args[0]
        return func(*args, **kwargs)

    def _check_copy(
        self, source: Tensor, target: torch.device, is_asynchronous: bool, written: Tensor | None = None
    ) -> None:
        if source.is_meta == (target.type == DEVICE.type) or source.numel() == 0:
            return
        host = written if source.is_meta else source
        if not is_asynchronous or host is None or host.untyped_storage().data_ptr() not in self._pinned:
            raise Waits(f"a copy {'from' if source.is_meta else 'to'} the device waits for it")


def _check(name: str, args: Any) -> None:
    if name in ROUND_TRIPS:
        raise Waits(f"{name} waits for the device")
    if name in ("index", "index_put", "index_put_"):
        if any(each is not None and each.dtype == torch.bool for each in args[1]):
            raise Waits(f"{name} by a mask waits for the device")
        if any(each is not None and not each.is_meta for each in args[1]):
            raise Waits(f"{name} by the host's numbers waits for the device")
