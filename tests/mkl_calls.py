"""How large the calls are that torch makes of functions that MKL computes on the CPU."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

OF_ONE_THREAD = 2048  # numbers of a tensor, up to which torch's threads take no share in a call
_BY_MKL = ("acos", "asin", "atan", "cos", "erf", "erfc", "exp", "expm1", "log", "log10", "log1p", "sin", "sqrt", "tanh")


class _Sizes(TorchDispatchMode):
    """By function and dtype, of each call in turn."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.noted: dict[tuple[str, str], list[int]] = defaultdict(list)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.removeprefix("aten::").removesuffix("_")
        if name in _BY_MKL:
            self.noted[name, str(args[0].dtype)].append(args[0].numel())
        return function(*args, **(kwargs or {}))


@contextmanager
def begin_in_one_thread() -> Iterator[None]:
    """Asserts of what is computed meanwhile, which has calls of several threads, that the first one
    of each function is not: see `ops.first_calls`.
    """
    with _Sizes() as sizes:
        yield
    assert max(map(max, sizes.noted.values())) > OF_ONE_THREAD, sizes.noted
    assert all(calls[0] <= OF_ONE_THREAD for calls in sizes.noted.values()), sizes.noted
