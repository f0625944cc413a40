"""Low-rank adapters of a rank's shard: those of a step, by its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ops.interface import Adapted, AdapterPart, Ops


@dataclass(frozen=True, slots=True)
class Factors:
    """Of one of the model's linears: W becomes W + scale * up @ down."""

    down: Tensor  # [r, in]
    up: Tensor  # [out, r]
    scale: float

    def part(self, outputs: slice, inputs: slice, place: slice) -> AdapterPart:
        """Of these outputs, which lie at `place` in a rank's weight, and of these inputs."""
        return AdapterPart(self.down[:, inputs].contiguous(), self.up[outputs].contiguous(), place, self.scale)


@dataclass(slots=True, eq=False)
class ShardAdapter:
    """An adapter, as a rank computes it: what each of its linears adds. It leaves the others as
    they are.
    """

    linears: dict[int, Any] = field(default_factory=dict)  # a backend's `PreparedAdapter`, by the linear's id

    @property
    def num_bytes(self) -> int:
        return sum(prepared.num_bytes for prepared in self.linears.values())

    def to(self, device: torch.device) -> "ShardAdapter":
        """A copy in the memory of a device; of the host, from which a GPU copies by itself."""
        return ShardAdapter({linear: prepared.to(device) for linear, prepared in self.linears.items()})

    def add(self, linear: object, prepared: Any) -> None:
        self.linears[id(linear)] = prepared


class AdaptedLinear(Protocol):
    """A linear, or several that are one weight, of which adapters may change some."""

    ops: Ops

    @property
    def num_parts(self) -> int: ...


class RowAdapters(Protocol):
    """Which adapter each row has."""

    def of(self, linear: AdaptedLinear) -> Adapted | None:
        """None if no row's adapter changes this one."""


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """Which adapter each row of a step has."""

    runs: Tensor  # [N, 3] int32 on the host: rows first to end have the adapter of that number; ascending
    adapters: Sequence[ShardAdapter]

    def of(self, linear: object) -> Adapted | None:
        """None if none of them changes this one."""
        slots = [adapter.linears.get(id(linear)) for adapter in self.adapters]
        return None if all(each is None for each in slots) else Adapted(self.runs, slots)


def parts_of(factors: Mapping[str, Factors], prefix: str, outputs: Mapping[str, slice]) -> list[AdapterPart]:
    """Of linears that are merged in one weight, in this order; `outputs`: this rank's of each."""
    parts, start = [], 0
    for name, part in outputs.items():
        place = slice(start, start + part.stop - part.start)
        start = place.stop
        if (found := factors.get(f"{prefix}.{name}")) is not None:
            parts.append(found.part(part, slice(None), place))
    return parts
