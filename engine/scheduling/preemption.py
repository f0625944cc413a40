"""Makes room in the cache for a lane by preempting later ones: chooses which, and whether their
blocks are swapped out or computed again.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.queues import Queues
from engine.scheduling.sequence import Lane, Sequence, Status

# Assumed seconds per token of prefill, before any was measured.
INITIAL_PREFILL_SECONDS_PER_TOKEN = 1e-3


@dataclass(slots=True)
class PreemptionCosts:
    """The cost of restoring a preempted token, measured as the engine runs."""

    swap_seconds_per_block: float  # one way
    prefill_seconds_per_token: float = INITIAL_PREFILL_SECONDS_PER_TOKEN

    def measured(self, plan: SchedulerOutputs, seconds: float) -> None:
        """Update the cost of a prefill token from a step's time; steps of mostly decode rows are
        ignored.
        """
        num_tokens = plan.num_tokens - plan.num_drafts
        if num_tokens >= 4 * max(len(plan.scheduled), 1):
            self.prefill_seconds_per_token += 0.2 * (seconds / plan.num_tokens - self.prefill_seconds_per_token)


class Preemption:
    """Takes blocks away from lanes, the cheapest to bring back first."""

    def __init__(self, queues: Queues, costs: PreemptionCosts) -> None:
        self.queues = queues
        self.costs = costs
        self.num_swaps = 0
        self.num_recomputes = 0
        self.num_wasted_tokens = 0  # computed once and thrown away, by `Scheduler.start_over` too

    def make_room(self, lane: Lane, seq: Sequence, num_tokens: int, plan: SchedulerOutputs) -> bool:
        """Preempt until the sequence can grow; False if its own lane was preempted, or if nothing
        would help.
        """
        blocks = self.queues.blocks
        while not blocks.reserve(seq, num_tokens):
            is_alone = self.queues.running == [lane] and lane.last_step != plan.step
            if is_alone or blocks.outgrows(num_tokens):
                if not seq.num_pending:  # which may be its last
                    plan.outgrown.append(lane)
                return False
            victim = self._victim(lane, plan)
            if victim is None:
                return False
            self._preempt(victim, plan)
            if victim is lane:
                return False
        return True

    def _victim(self, lane: Lane, plan: SchedulerOutputs) -> Lane | None:
        """The cheapest lane to restore of those behind `lane`; itself if it is the last; None if
        that lane is in this step.

        A step makes room for its lanes in order, and while it does costs only rise: the host's
        memory fills up. So all costs are computed once a step, and again where they may be out of
        date.
        """
        if plan.victims is None:
            behind = [other for other in self.queues.running if other.order > lane.order]
            plan.victims = [(self._cost(other), other.order, other) for other in behind]
            heapify(plan.victims)
        while plan.victims:
            cost, order, cheapest = plan.victims[0]
            if order <= lane.order or cheapest.last_step == plan.step or cheapest.status is not Status.RUNNING:
                heappop(plan.victims)
            elif (now := self._cost(cheapest)) > cost:
                heapreplace(plan.victims, (now, order, cheapest))
            else:
                return cheapest
        return None if lane.last_step == plan.step else lane

    def _preempt(self, lane: Lane, plan: SchedulerOutputs) -> None:
        if self._swap_cost(lane) < self._recompute_cost(lane):
            self.queues.swap_out(lane)
            self.num_swaps += 1
        else:
            self.num_wasted_tokens += sum(seq.num_computed_tokens for seq in lane.seqs)
            self.queues.requeue(lane)
            self.num_recomputes += 1
        lane.group.metrics.num_preemptions += 1
        plan.preempted.append(lane)

    def _cost(self, lane: Lane) -> float:
        return min(self._swap_cost(lane), self._recompute_cost(lane))

    def _swap_cost(self, lane: Lane) -> float:
        """Seconds to copy the lane's blocks out and in again; infinite if the host has no room."""
        num_blocks = self.queues.blocks.num_unique_blocks(lane.seqs)
        if num_blocks > self.queues.blocks.host.num_free:
            return float("inf")
        return 2 * num_blocks * self.costs.swap_seconds_per_block

    def _recompute_cost(self, lane: Lane) -> float:
        return sum([seq.num_computed_tokens for seq in lane.seqs]) * self.costs.prefill_seconds_per_token
