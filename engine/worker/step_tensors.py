"""A step's arrays on the device, as the layers read them."""

from dataclasses import dataclass

from torch import Tensor

from ops.interface import AttentionMetadata
from parallel.adapters.adapter import StepAdapters


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What a forward pass reads, on the device."""

    input_ids: Tensor | None  # [T] int32, on the first stage
    residual: Tensor | None  # [T, D] dtype of the stage before, elsewhere; is written to
    positions: Tensor  # [T] int32
    metadata: AttentionMetadata
    adapters: StepAdapters | None = None  # if any row has one
