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
from parallel.spec.decoder import EMBEDDING, HEAD, DecoderConfig
from parallel.spec.published.scheme import Shape
from parallel.spec.stored import as_the_model_names, check_form, check_names, refuse_published
from parallel.weights import is_finite


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
        check_names(self._keys.keys(), shapes, unused)

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
        tensor = self._given(name)
        check_form(name, tensor.shape, _name(tensor.dtype), self._shapes[name])
        return tensor

    def _given(self, name: str) -> Tensor:
        value = self._tensors[self._keys[name]]
        try:
            return torch.as_tensor(value).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidCheckpoint(f"{name} is no tensor but {type(value).__name__}: {error}") from None

    def verify(self) -> str:
        """Read all of them; a digest of names, shapes and numbers, in hexadecimal. Raises
        InvalidCheckpoint for a tied head, too, that is not the embedding: it would have no effect.
        """
        head, embedding = f"{HEAD}.weight", f"{EMBEDDING}.weight"
        is_tied = head in self._keys.keys() - self._shapes.keys()
        if is_tied and not torch.equal(self._given(head), self.whole(embedding)):
            raise InvalidCheckpoint(f"{head} differs from {embedding}, to which the model's head is tied")
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
