"""The one interface between the engine and whatever runs its steps."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from engine.errors import WorkerLost
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest, StepMasks


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much cache a started executor has, and what it computes with."""

    num_gpu_blocks: int  # usable device blocks, the null block (id 0) counted in
    num_cpu_blocks: int  # host blocks for swapping, ids from 0
    swap_seconds_per_block: float = 0.0  # measured: one block, all of a rank's layers, one way
    # What results depend on, by name; the same for every rank, and after every restart: see
    # `engine.checkpoint.fingerprint`.
    arithmetic: Mapping[str, str] = field(default_factory=dict)


def smallest(num_blocks: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Device and host blocks that every rank has room for: all ranks have the same number."""
    device, host = zip(*num_blocks, strict=True)
    return min(device), min(host)


class Executor(Protocol):
    """Runs steps in the order of submission, on one worker or many.

    `depth` is how many steps the engine keeps in flight. A future ends in a `SamplerOutput`, or in
    a `StepFailure`, in which every later step of that epoch ends too, until `restart` begins the
    next epoch. The cache's contents are then lost.
    """

    depth: int
    # Whether input ids may refer to tokens sampled in the previous step, which the driver does not
    # know yet.
    runs_ahead: bool

    def start(self) -> Capacity:
        """Load the model and make the cache; raises InvalidConfig or WorkerLost."""

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        """Queue one step; never blocks on the step's work."""

    def supply(self, masks: StepMasks) -> None:
        """The late part of a step that was submitted with `awaits_masks`; never blocks. Without it
        the step does not end.
        """

    def restart(self) -> Capacity:
        """Replace lost workers; steps submitted from now on carry the next epoch, even if it fails:
        then with WorkerLost.
        """

    def was_killed(self, failure: WorkerLost) -> bool:
        """Whether the lost worker was killed from outside, not by what it computed, as far as is
        known; call it before `restart`.
        """

    def shutdown(self) -> None:
        """Stop the workers; idempotent."""
