"""A forward pass as a tape of kernel calls: recorded once, then replayed by one call into C++.

A decode step of a small model is two hundred calls, each of which takes some ten microseconds of
Python. A tape is for them what a CUDA graph is for launches: pointers and sizes are those of the
recording, the data there is read again.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ops.cpu.library import calls_go_to, kernels
from ops.cpu.tape_memory import TapeMemory

_MAX_ARGUMENTS = 18  # of src/tape.h
_ALL_SUCCEED = -1
_ALLOCATIONS = ("aten::empty", "aten::empty_like")
_CONSTANTS = ("aten::lift_fresh",)  # torch.tensor: the result is a constant and need not be kept


class NotOnTape(RuntimeError):
    """Something other than a kernel of the forward pass was called."""


class _Call(ctypes.Structure):
    """TapeCall of src/tape.h."""

    _fields_ = (("kernel", ctypes.c_int64), ("words", ctypes.c_uint64 * _MAX_ARGUMENTS))


class Tapes:
    """Makes tapes, of which one is replayed at a time: they share their tensors' memory. What one
    returns lasts until any is replayed: an earlier one may have its own tensors there.
    """

    def __init__(self) -> None:
        self._memory = TapeMemory()

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A function that repeats compute() from the current contents of its inputs, and always
        returns the same tensor. The inputs must stay where they are. Nothing is computed now.
        Raises NotOnTape; a replay raises what compute() would. Work that compute() does outside
        torch, for example in numpy, is not recorded.
        """
        recorder = _Recorder()
        with calls_go_to(recorder), _Tensors(self._memory):
            output = compute()
        return _Tape(compute, recorder.calls, self._memory, output).replay


class _Tape:
    def __init__(self, compute: Callable[[], Tensor], calls: list[_Call], memory: TapeMemory, output: Tensor) -> None:
        """memory: of what the calls write to, beside the inputs, which compute keeps alive."""
        assert ctypes.sizeof(_Call) == kernels().squadron_tape_call_bytes()
        self._compute = compute
        self._calls = (_Call * len(calls))(*calls)
        self._memory = memory
        self._output = output

    def replay(self) -> Tensor:
        returned = ctypes.c_int64()
        failed = kernels().squadron_tape_replay(self._calls, len(self._calls), ctypes.byref(returned))
        if failed == _ALL_SUCCEED:
            return self._output
        with calls_go_to(_Recorder(failed, returned.value)):
            self._compute()  # its own checks raise the error
        raise AssertionError(f"call {failed} of a tape returned {returned.value}, and no layer raised an error")


class _Recorder:
    """Stands in for the kernels and records their calls. All calls appear to succeed, except the
    failed one, if there is one.
    """

    def __init__(self, failed: int | None = None, returned: int = 0) -> None:
        self.calls: list[_Call] = []
        self._failed = failed
        self._returned = returned

    def __getattr__(self, name: str) -> Callable[..., int]:
        success = ctypes.c_int64()
        number = kernels().squadron_tape_kernel(name.encode(), ctypes.byref(success))
        if number < 0:
            raise NotOnTape(f"{name} cannot be on a tape")
        types = getattr(kernels(), name).argtypes

        def note(*arguments: Any) -> int:
            words = [_word(kind, argument) for kind, argument in zip(types, arguments, strict=True)]
            self.calls.append(_Call(number, (ctypes.c_uint64 * _MAX_ARGUMENTS)(*words)))
            return self._returned if len(self.calls) - 1 == self._failed else success.value

        return note


class _Tensors(TorchDispatchMode):
    """Tensors are made in the tapes' memory. Otherwise torch may only return views, because a
    replay does not call it.
    """

    def __init__(self, memory: TapeMemory) -> None:
        TorchDispatchMode.__init__(self)  # torch's, untyped: mypy is told to let these be called
        self._memory = memory

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled by torch. Without this, the first decode step would import its
        compiler, which takes seconds.
        """
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name
        if function._schema.is_mutable or name in _CONSTANTS:
            raise NotOnTape(f"torch computes {name}")
        result = function(*args, **(kwargs or {}))
        if name in _ALLOCATIONS:
            if not result.is_contiguous():
                raise NotOnTape(f"torch makes a tensor of strides {result.stride()}")
            return self._memory.empty(result.shape, result.dtype)
        if not _shares_memory(result, args[0]):
            raise NotOnTape(f"torch computes {name}")
        return result


def _shares_memory(result: Any, argument: Any) -> bool:
    if not isinstance(result, Tensor) or not isinstance(argument, Tensor):
        return False
    return result.untyped_storage().data_ptr() == argument.untyped_storage().data_ptr()


def _word(kind: Any, argument: Any) -> int:
    if isinstance(argument, ctypes.Array):
        argument = ctypes.addressof(argument)
    return int.from_bytes(bytes(kind(argument)), "little")
