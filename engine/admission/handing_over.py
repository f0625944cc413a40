"""An engine whose blocks others go on with. One that computes prompts tells a request's last output
once the prompt's blocks are in the folder, or will not come there; one that is to end tells when
those of all requests are.
"""

from collections import deque
from concurrent.futures import Future

from engine.outputs import RequestOutput
from engine.scheduling.tiers.host_tier import HostTier


class HandingOver:
    """Of one engine; its thread's alone. `holds`: it computes prompts for others."""

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        self._held: deque[tuple[int, RequestOutput]] = deque()  # `HostTier.num_written` when it ended; its last output
        self._tier: HostTier | None = None  # of the epoch
        self._num_stored = 0
        self._leaving: tuple[int, Future[None]] | None = None  # `HostTier.num_written` when it was told to end

    def leave(self, tier: HostTier, done: "Future[None]") -> None:
        """The engine is to end: `done` ends once what `tier` has been given so far is stored."""
        self._leaving = tier.num_written, done
        self.stored(tier.num_done)

    def stored(self, num_stored: int) -> None:
        """A step has been answered: see `SchedulerOutputs.num_stored`."""
        self._num_stored = num_stored
        if self._leaving is not None and num_stored >= self._leaving[0]:
            self._leaving[1].set_result(None)
            self._leaving = None

    def hold(self, outputs: list[RequestOutput], tier: HostTier, *, is_over: bool) -> list[RequestOutput]:
        """Those that may be told now. `is_over`: nothing more is stored for those held so far."""
        told = []
        if tier is not self._tier:  # the blocks of the last epoch are gone
            told = self.give_up()
            self._tier, self._num_stored = tier, 0
        for output in outputs:
            if output.finished and output.error is None:
                self._held.append((tier.num_written, output))
            else:
                told.append(output)
        while self._held and (is_over or self._held[0][0] <= self._num_stored):
            told.append(self._held.popleft()[1])
        return told

    def give_up(self) -> list[RequestOutput]:
        """What is held."""
        held = [output for _, output in self._held]
        self._held.clear()
        return held
