"""A source of weights: whole tensors by name, as a trainer has them, of which each rank takes its
own slices.
"""

from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from parallel.errors import InvalidCheckpoint
from parallel.spec.decoder import DecoderConfig
from parallel.spec.published.scheme import Shape
from parallel.spec.stored import as_the_model_names
from parallel.weights import is_finite

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class GivenTensors:
    """`tensors` by the model's names; those in `unused` may also be there. Raises InvalidCheckpoint
    naming the tensor if one is missing or unknown, and, when it is read, if it is of another shape,
    not of floating point, or not finite.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        shapes: Mapping[str, Shape],
        unused: Set[str],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._tensors = tensors
        self._keys = as_the_model_names({name: name for name in tensors})  # by the model's name, the given one
        self._shapes = shapes
        self._dtype = dtype
        self._device = device
        for name in sorted(self._keys.keys() - shapes.keys() - unused):
            raise InvalidCheckpoint(f"the model has no tensor {name}")
        for name in shapes:
            if name not in self._keys:
                raise InvalidCheckpoint(f"tensor {name}, of shape {list(shapes[name])}, is missing")

    def read(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        stored = self.whole(name)[rows if columns is None else (rows, columns)]
        part = stored.to(self._device, self._dtype, copy=True, memory_format=torch.contiguous_format)
        if not is_finite(part):
            raise InvalidCheckpoint(f"tensor {name} holds NaN or infinity, as {part.dtype}")
        return part

    def linear(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        return self.read(f"{name}.weight", rows, columns)

    def whole(self, name: str) -> Tensor:
        """As it was given, on the CPU."""
        value = self._tensors[self._keys[name]]
        try:
            tensor = torch.as_tensor(value).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidCheckpoint(f"{name} is no tensor but {type(value).__name__}: {error}") from None
        if tuple(tensor.shape) != tuple(self._shapes[name]):
            raise InvalidCheckpoint(f"tensor {name} has shape {list(tensor.shape)}, not {list(self._shapes[name])}")
        if tensor.dtype not in DTYPES:
            allowed = ", ".join(_name(dtype) for dtype in DTYPES)
            raise InvalidCheckpoint(f"tensor {name} is {_name(tensor.dtype)}; weights may be {allowed}")
        return tensor

    def verify(self) -> str:
        """Read all of them; a digest of names, shapes and numbers, in hexadecimal."""
        with ThreadPoolExecutor(max(torch.get_num_threads(), 1)) as threads:
            digests = list(threads.map(self._verify, sorted(self._shapes)))
        return sha256("".join(digests).encode()).hexdigest()[:16]

    def _verify(self, name: str) -> str:
        tensor = self.whole(name).contiguous()
        if not is_finite(tensor.to(self._dtype)):
            raise InvalidCheckpoint(f"tensor {name} holds NaN or infinity, as {self._dtype}")
        data = tensor.reshape(-1).view(torch.uint8).numpy()
        head = f"{name} {_name(tensor.dtype)} {list(tensor.shape)} "
        return sha256(head.encode() + sha256(data.data).digest()).hexdigest()


def verify(tensors: Mapping[str, Any], config: DecoderConfig, dtype: torch.dtype) -> str:
    """The digest of weights for that model, computed in `dtype`. Raises InvalidCheckpoint."""
    refuse_published(config)
    return GivenTensors(tensors, config.shapes(), config.unused, dtype, torch.device("cpu")).verify()


def refuse_published(config: DecoderConfig) -> None:
    """Raises InvalidCheckpoint for a model whose linears are stored as codes."""
    if config.scheme is not None:
        raise InvalidCheckpoint(
            f"the checkpoint is quantized ({config.scheme.name}), and its weights change by a folder of the same form"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
