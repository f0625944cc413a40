"""What a scenario is run with."""

from dataclasses import dataclass
from typing import Any

from cluster.chaos.requests import KINDS
from cluster.ingress.choice import DEFAULT_WISH, Wish

QUICK_STREAMS = len(KINDS)  # one of each kind


@dataclass(frozen=True, slots=True)
class Options:
    """None: the scenario's own number, or its quick one."""

    quick: bool = False
    recovers: bool = True
    streams: int | None = None
    faults: int | None = None
    interval: float | None = None  # seconds between faults
    seconds: float | None = None  # of scenarios that last as long as one wants
    seed: int = 0
    models: int = 1  # of T1, T4 and T5
    speculative_config: dict[str, Any] | None = None  # of T1's engines
    ingress: Wish = DEFAULT_WISH  # of T14, T17 and T18

    def pick(self, given: int | None, full: int, quick: int) -> int:
        """The number that was given, or else the scenario's."""
        return given if given is not None else quick if self.quick else full


class NotPossibleHere(Exception):
    """What a scenario needs and this machine or user has not."""
