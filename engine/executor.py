"""The one interface between the engine and whatever runs its steps."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

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


@dataclass(frozen=True, slots=True)
class Weights:
    """A version of the model's weights, as a value: any process can read them from it, again and
    again, so that a worker which takes a lost one's place has the same.

    Either a checkpoint's folder, which every node has, or whole tensors by the model's names.

    A value of `tensors` is what `torch.as_tensor` takes, on the CPU; fetching one may raise
    InvalidConfig.
    """

    version: str  # the caller's name for it
    digest: str  # of the numbers; part of the fingerprint
    folder: str | None = None
    sample: str = ""  # the folder's `weights_digest`: one that has changed since is refused
    tensors: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"version {self.version!r}"


def smallest(num_blocks: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Device and host blocks that every rank has room for: all ranks have the same number."""
    device, host = zip(*num_blocks, strict=True)
    return min(device), min(host)


class Executor(Protocol):
    """Runs steps in the order of submission, on one worker or many.

    `depth` is how many steps the engine keeps in flight at most: one for each pipeline stage, and
    one more if it `runs_ahead`. A future ends in a `SamplerOutput`, or in a `StepFailure`, in which
    every later step of that epoch ends too, until `restart` begins the next epoch. The cache's
    contents are then lost.
    """

    depth: int
    # Whether input ids may refer to tokens sampled in earlier steps, which the driver does not know
    # yet.
    runs_ahead: bool

    @property
    def worker_pids(self) -> Sequence[int]:
        """The process ids of ranks that have processes of their own, in order of rank, each valid
        on its own node; none before `start` and after `shutdown`, and while ranks are replaced.
        """

    @property
    def worker_nodes(self) -> Sequence[str]:
        """The nodes of those processes, by names that Ray gives them."""

    def prepare(self, weights: Weights | None) -> None:
        """Before `start`: the weights that ranks are to begin with; None: those that are
        configured.
        """

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

    def load(self, weights: Weights | None) -> Capacity:
        """Begin the next epoch, in which every rank has these weights (None: those that are
        configured), as in the epochs after it; no step may be in flight. Raises InvalidConfig if a
        rank cannot have them: then some may have them and some not, until another `load`. Raises
        WorkerLost: then `restart` tries again.
        """

    def sleep(self, level: int) -> None:
        """Free the caches, and on level 2 the weights, until `restart` or `load` begins the next
        epoch; no step may be in flight.
        """

    def was_killed(self, failure: WorkerLost) -> bool:
        """Whether the lost worker was killed from outside, not by what it computed, as far as is
        known; call it before `restart`.
        """

    def shutdown(self) -> None:
        """Stop the workers; idempotent."""
