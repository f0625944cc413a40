"""The operations that layers are made of, and the backends that compute them.

A backend is a module with the functions of `Ops`: `ops.reference` (plain torch, the specification), `ops.cpu` (C++),
`ops.kernels` (Triton). It is chosen once, by name, and handed to the layers as an argument.

Shapes: T token rows, S sequences, R sampled rows, D hidden size, H query heads, K key-value heads, V vocabulary. "dtype" is
the model's (float32, bfloat16, float16). Index tensors are int32. Sums are taken in float32 and in a fixed order.
"""

import importlib
from typing import cast

import torch

from ops.interface import Ops

MODULES = {"reference": "ops.reference", "cpu": "ops.cpu", "triton": "ops.kernels"}
DEVICES = {"cpu": "cpu", "triton": "cuda"}  # backends for one type of device only
FASTEST = {"cpu": "cpu", "cuda": "triton"}  # by type of device


class UnavailableBackend(ValueError):
    """A backend was asked for that cannot run here; the message says why and what can."""


def select(name: str, device: torch.device) -> Ops:
    """The backend called `name` for `device`; its NAME says which it is.

    "auto" is the fastest one that can run (`unavailable_reason` says why it is not a faster one); any other name is that
    backend or `UnavailableBackend`.
    """
    if name == "auto":
        fastest = FASTEST.get(device.type, "reference")
        name = fastest if unavailable_reason(fastest, device) is None else "reference"
    elif (reason := unavailable_reason(name, device)) is not None:
        raise UnavailableBackend(f"the {name} backend cannot run on {device.type}: {reason}; use reference")
    return cast(Ops, importlib.import_module(MODULES[name]))


def unavailable_reason(name: str, device: torch.device) -> str | None:
    """Why the backend called `name` cannot run on `device`, in a few words; None if it can."""
    if name not in MODULES:
        raise UnavailableBackend(f"there is no ops backend {name!r}; there are auto, {', '.join(MODULES)}")
    if DEVICES.get(name, device.type) != device.type:
        return f"it is for {DEVICES[name]} devices"
    try:
        module = importlib.import_module(MODULES[name])
    except ModuleNotFoundError as error:
        if error.name != MODULES[name]:
            raise
        return f"{MODULES[name]} is not part of this installation"
    if module.__file__ is None:  # a folder without an __init__.py
        return f"{MODULES[name]} is not part of this installation"
    return cast("str | None", module.unavailable_reason()) if hasattr(module, "unavailable_reason") else None
