"""Sources of weights: safetensors files, of which each rank reads its own slices, or a seed."""

from collections.abc import Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b, sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from parallel.errors import InvalidCheckpoint
from parallel.published.reader import LinearReader, LinearWeight
from parallel.spec.published.scheme import Scheme, Shape
from parallel.weight_files import stored_tensors

DUMMY_ROWS = 1024  # rows of a dummy tensor that are drawn at once
TIED_ROWS = 8192  # of a head and an embedding that are compared at once
DUMMY_RANGE = 0.02 * 3**0.5  # uniform numbers up to this have the standard deviation 0.02


class Weights(Protocol):
    """The model's tensors by name."""

    def read(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        """A slice of a tensor: a contiguous tensor of its own, in the model's dtype and on its
        device.
        """

    def linear(self, name: str, rows: slice, columns: slice | None = None) -> LinearWeight:
        """The same of the weight of a linear, or its codes if the checkpoint was published
        quantized.
        """


class Checkpoint:
    """The safetensors files of a folder in Hugging Face layout: one file, or several and an index.

    `shapes` are the tensors that the model has, of whose linears `scheme` may say that they are
    stored quantized; tensors in `unused` may also be there. `digests` are
    the SHA-256 of some tensors' bytes, in hexadecimal: tensors that are read are hashed meanwhile,
    and compared when the context ends without another error. `own`: how the names of those begin
    that will be read; files without such may be absent. Raises InvalidCheckpoint naming file and
    tensor if one is missing, unknown, of another shape, not of floating point, not finite, or
    changed.
    """

    def __init__(
        self,
        folder: str,
        shapes: Mapping[str, Shape],
        unused: Set[str],
        dtype: torch.dtype,
        device: torch.device,
        digests: Mapping[str, str],
        scheme: Scheme | None = None,
        own: tuple[str, ...] = ("",),
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.shapes = shapes
        self.scheme = scheme
        forms = shapes if scheme is None else scheme.forms(shapes)
        self.tensors = stored_tensors(Path(folder), forms, unused, own)
        self._digests = digests
        self._hashing: dict[str, Future[str]] = {}
        self._threads = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="hash")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for name, hashing in self._hashing.items() if error is None else ():
                if hashing.result() != self._digests[name]:
                    raise InvalidCheckpoint(
                        f"{self.tensors[name].path}: tensor {name} has changed since its SHA-256 was written down"
                    )
        finally:
            self._threads.shutdown(cancel_futures=True)

    def read(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        stored = self._stored(name, rows if columns is None else (rows, columns))
        part = stored.to(self.device, self.dtype, copy=True, memory_format=torch.contiguous_format)
        if not is_finite(part):
            raise InvalidCheckpoint(f"{self.tensors[name].path}: tensor {name} holds NaN or infinity, as {part.dtype}")
        return part

    def linear(self, name: str, rows: slice, columns: slice | None = None) -> LinearWeight:
        if self.scheme is None or not self.scheme.is_quantized(name):
            return self.read(f"{name}.weight", rows, columns)
        num_out, num_in = self.shapes[f"{name}.weight"]
        if (bias := f"{name}.bias") in self.tensors and bias not in self.shapes and self._stored(bias).any():
            raise InvalidCheckpoint(f"{self.tensors[bias].path}: the model has no {bias}, and its numbers are not zero")
        inputs = slice(None) if columns is None else columns
        parts = slice(*rows.indices(num_out)[:2]), slice(*inputs.indices(num_in)[:2])
        return LinearReader(self._stored, self.scheme, name, *parts).weight(self.dtype).to(self.device)

    def check_tied(self, name: str, other: str, rows: slice) -> None:
        """That the weight `name`, if it is there, is the same as `other` in these rows. Raises
        InvalidCheckpoint: programs differ in which of them counts then.
        """
        ours, theirs = f"{name}.weight", f"{other}.weight"
        if ours not in self.tensors:
            return
        is_same = self.tensors[ours].shape == self.tensors[theirs].shape
        for start in range(rows.start, rows.stop, TIED_ROWS) if is_same else ():
            piece = slice(start, min(start + TIED_ROWS, rows.stop))
            is_same = is_same and torch.equal(self.read(ours, piece), self.read(theirs, piece))
        if not is_same:
            raise InvalidCheckpoint(
                f"{self.tensors[ours].path}: {ours} differs from {theirs}, and config.json has "
                "tie_word_embeddings=true; if it is the model's head, set that to false, or else remove the tensor"
            )

    def _stored(self, name: str, index: Any = None) -> Tensor:
        """A part of a tensor as it is in its file, or all of it, verified meanwhile."""
        tensor = self.tensors[name]
        if name in self._digests and name not in self._hashing:
            self._hashing[name] = self._threads.submit(_digest, tensor.file, tensor.name)
        if index is None:
            whole: Tensor = tensor.file.get_tensor(tensor.name)
            return whole
        part: Tensor = tensor.file.get_slice(tensor.name)[index]
        return part


class Dummy:
    """Random weights, a function of seed and name only: the same values for every sharding. Norms
    are ones.
    """

    def __init__(self, seed: int, shapes: Mapping[str, Shape], dtype: torch.dtype, device: torch.device) -> None:
        self.seed = seed
        self.shapes = shapes
        self.dtype = dtype
        self.device = device

    def read(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        num_rows, *width = self.shapes[name]
        start, stop, _ = rows.indices(num_rows)
        index = slice(None) if columns is None else (slice(None), columns)
        if name.endswith("norm.weight"):
            return torch.ones(stop - start, dtype=self.dtype, device=self.device)
        parts = [torch.empty(0, *width, dtype=self.dtype)[index]]
        for first in range(start - start % DUMMY_ROWS, stop, DUMMY_ROWS):
            drawn = self._draw(name, first, (min(DUMMY_ROWS, num_rows - first), *width))
            parts.append(drawn[max(start - first, 0) : stop - first][index].to(self.dtype))
        return torch.cat(parts).to(self.device)

    def linear(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        return self.read(f"{name}.weight", rows, columns)

    def _draw(self, name: str, first: int, shape: tuple[int, ...]) -> Tensor:
        key = blake2b(f"{self.seed} {name} {first}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "little", signed=True))
        return torch.empty(shape).uniform_(-DUMMY_RANGE, DUMMY_RANGE, generator=generator)


def is_finite(values: Tensor) -> bool:
    """One pass at memory bandwidth, without a copy: a NaN becomes both minimum and maximum."""
    if not values.numel():
        return True
    least, greatest = values.aminmax()
    return bool(least.isfinite() & greatest.isfinite())


def _digest(file: Any, name: str) -> str:
    """SHA-256 of a tensor's bytes, in hexadecimal; releases the interpreter lock."""
    data = file.get_tensor(name).reshape(-1).view(torch.uint8)
    return sha256(data.numpy()).hexdigest()
