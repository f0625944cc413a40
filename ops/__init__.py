"""The operations that layers are made of, and the backends that compute them.

A backend is a module with the functions of `Ops`: `ops.reference` (plain torch, the specification),
`ops.cpu` (C++), `ops.kernels` (Triton). It is chosen once, by name, and handed to the layers as an
argument.

Shapes: T token rows, S sequences, R sampled rows, D hidden size, H query heads, K key-value heads,
V vocabulary. "dtype" is the model's (float32, bfloat16, float16). Index tensors are int32. Sums are
taken in float32 and in a fixed order.
"""

import hashlib
import importlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from ops.cpu import build as cpu_build
from ops.cpu import library as cpu_library
from ops.interface import Ops, Quantization

MODULES = {"reference": "ops.reference", "cpu": "ops.cpu", "triton": "ops.kernels"}
DEVICES = {"cpu": "cpu", "triton": "cuda"}  # backends for one type of device only
FASTEST = {"cpu": "cpu", "cuda": "triton"}  # by type of device
# Four bits would cost embedding tables and the head more accuracy than the memory is worth.
EMBEDDING_QUANTIZATION: Quantization = "int8"
# Backends, by NAME, whose forward pass launches the same kernels for every batch and never waits
# for one, so that a graph can hold it.
CAPTURABLE = ("triton", "triton-fast", "cpu")
FLOAT8_CAPABILITY = (8, 9)  # of CUDA: conversions to float8, and tensor cores that multiply it
INEXACT = {"triton": "ops.kernels.fast"}  # faster variants, if results need not be exact


class UnavailableBackend(ValueError):
    """The requested backend cannot run here; the message says why and which can."""


def select(name: str, device: torch.device, quantization: Quantization | None = None, *, exact: bool = True) -> Ops:
    """The backend called `name` for `device`; its NAME says which it is. Its prepare_* functions
    quantize weights with `quantization`.

    "auto" is the fastest one that can run (`unavailable_reason` says why it is not a faster one);
    any other name is that backend or `UnavailableBackend`. With exact=False a faster variant whose
    results are not exact is used, if there is one.
    """
    if name == "auto":
        fastest = FASTEST.get(device.type, "reference")
        name = fastest if unavailable_reason(fastest, device) is None else "reference"
    elif (reason := unavailable_reason(name, device)) is not None:
        raise UnavailableBackend(f"the {name} backend cannot run on {device.type}: {reason}; use reference")
    inexact = INEXACT.get(name, MODULES[name]) if quantization is None else MODULES[name]
    backend = cast(Ops, importlib.import_module(MODULES[name] if exact else inexact))
    if quantization is None:
        return backend
    if (reason := unquantized_reason(backend, quantization, device)) is not None:
        raise UnavailableBackend(f"quantization={quantization} {reason}; int8 or int4 would work")
    return quantizing(backend, quantization)


def levels(backend: Ops, device: torch.device) -> tuple[str, ...]:
    """The levels between which the backend's results differ on this kind of device, those that this
    one supports, best first.
    """
    if backend.NAME == "cpu":
        return cpu_library.usable_levels()
    if device.type == "cuda":
        return ("sm_{}{}".format(*torch.cuda.get_device_capability(device)),)
    return (torch.backends.cpu.get_cpu_capability(),)


def use_level(level: str) -> None:
    """Make this process' cpu backend compute at one of its levels; other backends have only one per
    device.
    """
    if level in cpu_build.LEVELS:
        try:
            cpu_library.use(level)
        except cpu_library.KernelsUnavailable as error:
            raise UnavailableBackend(str(error)) from None


def thread_ids(backend: Ops, num_threads: int) -> list[int]:
    """The system's ids of the threads that kernels compute on when the calling thread calls them
    with `num_threads`, the caller first; none where the backend has no threads of its own.
    """
    return cpu_library.thread_ids(num_threads) if backend.NAME == "cpu" else []


def arithmetic(backend: Ops, device: torch.device) -> str:
    """Everything that the backend's results depend on beside its arguments: backend, level, and
    digest of the sources.
    """
    if backend.NAME == "cpu":
        return f"{cpu_library.loaded()}, torch {torch.__version__}"
    (level,) = levels(backend, device)
    return f"{backend.NAME} {level}, {_sources_digest(backend)}, torch {torch.__version__}"


def _sources_digest(backend: Ops) -> str:
    """Of the backend's and of the reference's, which it takes parts of."""
    root = Path(__file__).parent
    modules = {MODULES[backend.NAME.removesuffix("-fast")], MODULES["reference"]}
    folders = [root / Path(*module.split(".")[1:]) for module in modules]
    digest = hashlib.sha256()
    for source in sorted(source for folder in folders for source in folder.rglob("*.py")):
        digest.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def unquantized_reason(backend: Ops, quantization: Quantization, device: torch.device) -> str | None:
    """Why the backend does not support that quantization on `device`; None if it does."""
    if quantization not in backend.QUANTIZATIONS:
        return f"is not computed by the {backend.NAME} backend"
    if quantization == "fp8" and backend.NAME == "triton":
        return no_float8_reason(device)
    return None


def no_float8_reason(device: torch.device) -> str | None:
    """Why kernels cannot use float8 on a device; None if they can, as in the interpreter."""
    if device.type != "cuda":
        return None
    version = torch.cuda.get_device_capability(device)
    if version >= FLOAT8_CAPABILITY:
        return None
    return f"needs a GPU of compute capability 8.9 or later, and this one has {version[0]}.{version[1]}"


def quantizing(backend: Any, quantization: Quantization) -> Ops:
    """The backend's functions, with `quantization` bound in every prepare_*."""
    functions = {name: getattr(backend, name) for name in backend.__all__}
    for name in functions:
        if name.startswith("prepare_"):
            stored = EMBEDDING_QUANTIZATION if name == "prepare_embedding" else quantization
            functions[name] = partial(functions[name], quantization=stored)
    return cast(Ops, SimpleNamespace(**functions))


def unavailable_reason(name: str, device: torch.device) -> str | None:
    """Why the backend called `name` cannot run on `device`, in a few words; None if it can."""
    if name not in MODULES:
        raise UnavailableBackend(f"there is no ops backend {name!r}; there are auto, {', '.join(MODULES)}")
    if DEVICES.get(name, device.type) != device.type:
        return f"it is for {DEVICES[name]} devices"
    try:
        module = importlib.import_module(MODULES[name])
    except ModuleNotFoundError as error:
        if error.name == "triton":
            return "triton is not installed"
        if error.name != MODULES[name]:
            raise
        return f"{MODULES[name]} is not part of this installation"
    if module.__file__ is None:  # a folder without an __init__.py
        return f"{MODULES[name]} is not part of this installation"
    return cast("str | None", module.unavailable_reason()) if hasattr(module, "unavailable_reason") else None
