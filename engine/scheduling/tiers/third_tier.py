"""What the scheduler does for the third tier: requests that wait for blocks of it, and what a step
stores there and reads.
"""

from engine.config import EngineConfig
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.queues import Fetching, Queues
from engine.scheduling.sequence import Lane, SequenceGroup

LEFT_SECONDS = 60.0  # for which blocks may be found that an engine has left: longer than it stays to serve them


class ThirdTier:
    """Of one engine, for all its epochs; where it has no shelf, none of this does anything."""

    def __init__(self, config: EngineConfig, queues: Queues) -> None:
        self._queues = queues
        self._hands_over = config.kv_role == "producer"
        self._reads_blocks = config.reads_blocks
        self.fetching = Fetching(queues)

    def expect(self, group: SequenceGroup) -> None:
        """The request is new here; another engine may have stored blocks of it."""
        blocks, request = self._queues.blocks, group.request
        if request.is_prefilled:
            seq = group.seqs[0]
            blocks.prefixes.expect(seq, seq.num_prompt_tokens, group.salt_of(seq), request.blocks_at)
        if request.resume.blocks_at is not None and self._reads_blocks:
            blocks.open_shelf(LEFT_SECONDS)
            for seq in group.seqs:
                place = request.resume.blocks_at or None
                blocks.prefixes.expect(seq, len(seq.token_ids), group.salt_of(seq), place)

    def leave(self, most_blocks: int, *, apart: bool) -> None:
        """The engine is to end: the third tier gets the blocks of all that runs; `HostTier`'s
        `num_done` tells what it has got. See `BlockManager.leave`.
        """
        self._hands_over = True
        lanes = (*self._queues.running, *self._queues.swapped)
        self._queues.blocks.leave([seq for lane in lanes for seq in lane.seqs], most_blocks, apart=apart)

    @property
    def wants_steps(self) -> bool:
        """Whether some are wanted that only bring blocks there, or from there."""
        tier, shelf = self._queues.blocks.host_tier, self._queues.blocks.shelf
        if shelf is None:
            return False
        return tier.has_unsaved or shelf.has_unstored or (shelf.num_fetching > 0 and not shelf.is_late)

    def sets_aside(self, lane: Lane) -> bool:
        """Whether a lane is set aside until blocks of it have been read."""
        prefixes = self._queues.blocks.prefixes
        if not any(prefixes.fetch(seq, lane.group.salt_of(seq)) for seq in lane.seqs):
            return False
        self.fetching.set_aside(lane)
        return True

    def look_again(self) -> None:
        """Those who wait need not, where reading takes too long."""
        shelf = self._queues.blocks.shelf
        if shelf is not None and shelf.is_late:
            self.fetching.bring_back()

    def plan(self, plan: SchedulerOutputs, *, is_idle: bool) -> None:
        """Add what the step stores and begins to read. `is_idle`: nothing runs."""
        blocks = self._queues.blocks
        shelf = blocks.shelf
        if shelf is None:
            return
        if shelf.is_over:
            blocks.close_shelf()
            return
        plan.awaits_fetches = is_idle and shelf.num_fetching > 0 and not shelf.is_late
        if not plan.is_empty or shelf.has_unstored or shelf.has_new_fetches:
            written = {slot for _, slot in plan.blocks_to_swap_out}
            plan.blocks_to_store, plan.blocks_to_fetch = shelf.take_transfers(written)
            plan.fetch_addresses = shelf.addresses_of(plan.blocks_to_fetch)
            plan.awaits_stores = self._hands_over and bool(plan.blocks_to_store)
        plan.num_stored = blocks.host_tier.num_done

    def fetched(self, fetched: list[list[int]], num_ranks: int) -> None:
        """Ranks have read blocks: who waited for any may look again."""
        shelf = self._queues.blocks.shelf
        if shelf is not None:
            shelf.answered(fetched, num_ranks)
            self.fetching.bring_back()

    def start_over(self) -> None:
        """What was being read is lost with the workers: who waited for it looks for it again."""
        for group in self.fetching:
            for seq in group.seqs:
                seq.num_sought_blocks = 0
        self.fetching.bring_back()
