"""Finds or builds the compiled kernels of a level, loads them, and declares their C signatures."""

import ctypes
import functools
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch  # before the kernels, which share its OpenMP runtime
from torch import Tensor

from ops.cpu import build

logger = logging.getLogger("squadron.ops")

# DType of src/api.h.
_DTYPES = {torch.float32: 0, torch.bfloat16: 1}

_POINTER, _INT64, _INT32, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
_SIGNATURES = {
    "squadron_packed_bytes": (_INT64, [_POINTER]),
    "squadron_pack": (_INT32, [_POINTER, _POINTER, _INT32]),
    "squadron_published_offsets": (None, [_POINTER] * 2),
    "squadron_pack_published": (None, [_POINTER] * 4 + [_INT64, _POINTER, _INT32]),
    "squadron_int8_offsets": (None, [_POINTER] * 2),
    "squadron_pack_int8": (None, [_POINTER] * 3 + [_INT32]),
    "squadron_encode_rows": (None, [_POINTER] + [_INT64] * 3 + [_FLOAT] + [_POINTER] * 2 + [_INT32] * 2),
    "squadron_int8_linear": (None, [_POINTER] * 3 + [_INT64] + [_POINTER] * 2 + [_INT32] * 2),
    "squadron_gather": (None, [_POINTER] * 3 + [_INT64] * 3 + [_INT32] * 2),
    "squadron_unpack_rows": (_INT64, [_POINTER, _POINTER, _INT64, _POINTER, _INT32]),
    "squadron_linear": (
        None,
        [_POINTER, _POINTER, _INT64, _POINTER, _POINTER, _INT32, _INT32]
        + [_POINTER] * 2
        + [_INT64, _POINTER, _INT64, _POINTER],
    ),
    "squadron_digits_bytes": (_INT64, [_POINTER]),
    "squadron_encode_digits": (None, [_POINTER, _POINTER, _INT64, _POINTER, _INT32]),
    "squadron_lanes": (_INT32, []),
    "squadron_adapter_down": (None, [_POINTER] * 2 + [_INT64, _POINTER, _INT64, _POINTER] + [_INT32] * 2),
    "squadron_silu_and_mul": (None, [_POINTER] * 2 + [_INT64] * 2 + [_INT32] * 2),
    "squadron_rms_norm": (None, [_POINTER] * 3 + [_INT64] * 2 + [_FLOAT, _INT32, _INT32]),
    "squadron_add": (None, [_POINTER] * 2 + [_INT64] * 2 + [_INT32] * 2),
    "squadron_add_rms_norm": (None, [_POINTER] * 4 + [_INT64] * 2 + [_FLOAT, _INT32, _INT32]),
    "squadron_qk_norm": (None, [_POINTER] * 3 + [_INT64] * 4 + [_FLOAT, _INT32, _INT32]),
    "squadron_add_gated": (None, [_POINTER] * 3 + [_INT64] * 2 + [_INT32]),
    "squadron_route": (None, [_POINTER] + [_INT64] * 3 + [_INT32] + [_POINTER] * 2 + [_INT32]),
    "squadron_experts": (
        None,
        [_POINTER] * 2 + [_INT64] * 3 + [_POINTER, _INT64] + [_POINTER] * 2 + [_INT64, _POINTER, _INT32],
    ),
    "squadron_rotary_and_cache": (_INT64, [_POINTER] * 7 + [_INT64] * 7 + [_INT32] * 2),
    "squadron_paged_attention": (_INT64, [_POINTER] * 7 + [_INT64] * 8 + [_FLOAT, _INT32, _INT32]),
    "squadron_sample": (None, [_POINTER] + [_INT64] * 2 + [_POINTER] * 8 + [_INT32]),
    "squadron_apply_mask": (None, [_POINTER] + [_INT64] * 2 + [_POINTER] * 2 + [_INT32]),
    "squadron_apply_penalties": (None, [_POINTER] + [_INT64] * 2 + [_POINTER] * 7 + [_INT32]),
    "squadron_token_logprobs": (None, [_POINTER] + [_INT64] * 2 + [_POINTER, _INT64] + [_POINTER] * 4 + [_INT32]),
    "squadron_shm_bytes": (_INT64, [_INT32]),
    "squadron_shm_reserved_bytes": (_INT64, [_INT32]),
    "squadron_shm_max_ranks": (_INT32, []),
    "squadron_shm_join": (_POINTER, [_INT32] * 3),
    "squadron_shm_leave": (None, [_POINTER]),
    "squadron_shm_abort": (None, [_POINTER]),
    "squadron_shm_barrier": (_INT32, [_POINTER, _INT64]),
    "squadron_shm_all_reduce": (_INT32, [_POINTER] * 3 + [_INT64] * 2),
    "squadron_shm_all_gather": (_INT32, [_POINTER] * 3 + [_INT64] * 3),
    "squadron_shm_send": (_INT32, [_POINTER] * 2 + [_INT64] * 2),
    "squadron_shm_receive": (_INT32, [_POINTER] * 2 + [_INT64] * 2),
    "squadron_start": (_INT32, []),
    "squadron_thread_ids": (None, [_POINTER, _INT32]),
    "squadron_tape_kernel": (_INT32, [ctypes.c_char_p, _POINTER]),
    "squadron_tape_call_bytes": (_INT64, []),
    "squadron_tape_replay": (_INT64, [_POINTER, _INT64, _POINTER]),
}


class KernelsUnavailable(Exception):
    """The C++ kernels cannot be used here; one line says why."""


class _Local(threading.local):
    stand_in: Any = None


_local = _Local()


def library() -> Any:
    """The kernels, or what their calls go to in this thread; raises KernelsUnavailable."""
    return kernels() if _local.stand_in is None else _local.stand_in


@contextmanager
def calls_go_to(stand_in: Any) -> Iterator[None]:
    """In this thread, `library()` returns `stand_in`."""
    before, _local.stand_in = _local.stand_in, stand_in
    try:
        yield
    finally:
        _local.stand_in = before


@functools.cache
def kernels() -> ctypes.CDLL:
    """The kernels themselves; raises KernelsUnavailable."""
    return _find()[1]


@functools.cache
def isa() -> str:
    """The instruction-set level in use; raises KernelsUnavailable."""
    return _find()[0]


def loaded() -> str:
    """The name of the kernels in use, whatever the sources have become since they were loaded: with
    a digest of those that they are of. Raises KernelsUnavailable.
    """
    return Path(kernels()._name).stem


def usable_levels() -> tuple[str, ...]:
    """The level in use and those below it, best first: what `use` takes. Raises
    KernelsUnavailable.
    """
    levels = _allowed_levels()
    return tuple(levels[levels.index(isa()) :])


def use(level: str) -> None:
    """Make this process compute at this level, on which ranks of different processors have agreed.
    Raises KernelsUnavailable. Must be called before anything is computed, because tensors are
    packed for a level.
    """
    if isa() != level:
        os.environ["SQUADRON_CPU_ISA"] = level
        for known in (_find, kernels, isa, unavailable_reason):
            known.cache_clear()
        kernels()


@functools.cache
def unavailable_reason() -> str | None:
    """Why this backend cannot be used, in one line; None if it can."""
    try:
        kernels()
    except KernelsUnavailable as error:
        return str(error)
    return None


def thread_ids(num_threads: int) -> list[int]:
    """The system's ids of the threads that the calling thread's kernels compute on, its own
    first. They live until it ends.
    """
    ids = (ctypes.c_int32 * num_threads)()
    kernels().squadron_thread_ids(ids, num_threads)
    return [thread for thread in ids if thread != -1]


def dtype_number(tensor: Tensor) -> int:
    """The kernels' number of the tensor's dtype; ValueError if they do not support it."""
    number = _DTYPES.get(tensor.dtype)
    if number is None:
        raise ValueError(f"the cpu backend computes in float32 and bfloat16, not in {tensor.dtype}")
    return number


@functools.cache
def _find() -> tuple[str, ctypes.CDLL]:
    """The best level with kernels beside the sources or in the user's cache, or for which they can
    be built there.
    """
    reasons = []
    for level in _allowed_levels():
        installed = Path(__file__).parent / build.library_name(level)
        try:
            found = _load(installed if installed.exists() else build.build_once(level, _cache_folder()))
        except build.BuildError as error:
            reasons.append(str(error))
        except OSError as error:
            reasons.append(f"cannot load the kernels: {error}")
        else:
            for reason in reasons:
                logger.warning(f"The kernels are those for {level} only: {reason}")
            return level, found
    raise KernelsUnavailable(reasons[0])


def _allowed_levels() -> list[str]:
    """The levels that this processor runs, best first; only that of SQUADRON_CPU_ISA, if it is
    set.
    """
    levels = build.runnable_levels()
    wanted = os.environ.get("SQUADRON_CPU_ISA")
    if wanted and wanted not in levels:
        raise KernelsUnavailable(f"SQUADRON_CPU_ISA={wanted}: this processor runs {', '.join(levels)}")
    return [wanted] if wanted else levels


def _load(path: Path) -> ctypes.CDLL:
    kernels = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(kernels, name)
        function.restype, function.argtypes = result, arguments
    if error := kernels.squadron_start():
        reason = os.strerror(error) if error > 0 else "a thread's stack for signals is too small"
        raise OSError(f"the system does not let this process use the tile registers of AMX: {reason}")
    return kernels


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "squadron"
