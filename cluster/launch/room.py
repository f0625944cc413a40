"""Decides which of this machine's cores the engines compute on, and which they leave to HTTP.

A step of the engine ends when its slowest thread does: a thread that shares its core with a gateway
delays the others. With a small model, answering over HTTP takes as much processor time as the
model, and gets cores of its own. With a large model it takes next to none, and the engines use
every core.
"""

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.worker.device.cores import usable_cores

# Microseconds of processor time a token, with 64 streams (docs/benchmarks.md): of a gateway and
# what is before it; of the engine, whatever the model, and for each MiB of its weights.
HTTP_MICROSECONDS = 76.0  # 54 and 22, by HAProxy
ENGINE_MICROSECONDS = 40.0
ENGINE_MICROSECONDS_PER_MIB = 5.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Room:
    """`__str__` is a line of `squadron serve`'s start."""

    num_cores: int
    num_ranks: int  # of all engines of all models
    num_threads: int | None  # of each rank; None: as many as there are cores, divided among an engine's ranks
    num_left: int

    def __str__(self) -> str:
        cores = _count(self.num_cores, "core")
        if self.num_threads is None:
            return f"{cores}: the engine computes on {'all' if self.num_cores > 1 else 'it'}, and shares with HTTP"
        whose = "the engine" if self.num_ranks == 1 else f"each of {self.num_ranks} ranks"
        return f"{cores}: {_count(self.num_threads, 'thread')} for {whose}, {self.num_left} left for HTTP"


def divide(
    config: EngineConfig, weight_bytes: int, *, num_engines: int, num_gateways: int, other_ranks: int = 0
) -> Room:
    """Divide the cores that this process may use between HTTP and the ranks of all engines, in
    proportion to their parts of a token's work; `weight_bytes`: of all ranks of an engine;
    `other_ranks`: of other models, each of which gets as many cores.

    A number of threads in the configuration is kept.
    """
    num_cores, num_ranks = usable_cores(), num_engines * config.world_size + other_ranks
    if config.num_threads is not None:
        left = max(0, num_cores - num_ranks * config.num_threads)
        return Room(num_cores, num_ranks, config.num_threads, left)
    engine = ENGINE_MICROSECONDS + ENGINE_MICROSECONDS_PER_MIB * weight_bytes / MIB
    wanted = round(num_cores * HTTP_MICROSECONDS / (HTTP_MICROSECONDS + engine))
    # A gateway is one thread of Python, and so is the proxy; every rank has a core at least.
    left = max(0, min(wanted, num_gateways + 1, num_cores - num_ranks))
    if not left and not other_ranks:
        return Room(num_cores, num_ranks, None, 0)
    return Room(num_cores, num_ranks, max(1, (num_cores - left) // num_ranks), left)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
