"""The queues of waiting, running and swapped lanes, and their blocks."""

from collections import Counter
from collections.abc import Callable, Iterator

from engine.scheduling.block_manager import BlockManager
from engine.scheduling.sequence import Lane, Sequence, SequenceGroup, Status
from engine.scheduling.token_sets.held_sets import HeldSets
from engine.scheduling.waiting.cohorts import Cohorts
from engine.scheduling.waiting.lack import Lack
from engine.scheduling.waiting.waiting_queue import WaitingQueue, count, insert, remove


class Queues:
    """Each is in order of `Lane.order`; a lane's status says which one it is in, and changes only
    here. `blocks` is replaced at a restart.
    """

    def __init__(self, blocks: BlockManager, waiting: WaitingQueue, watermark: float, num_stages: int) -> None:
        """`watermark`: the share of blocks that running lanes keep for themselves."""
        self._watermark = watermark
        self.blocks = blocks
        self.waiting = waiting
        self.running: list[Lane] = []
        self.cohorts = Cohorts(num_stages)  # of the running lanes
        self.swapped: list[Lane] = []
        self.num_places = 0  # of the running lanes
        # Lanes that run, by their request, and by the name of its adapter and by what that is.
        self.running_groups = Counter[SequenceGroup]()
        self.running_adapters = Counter[str]()
        self.running_digests = Counter[str]()
        self.swapped_groups = Counter[SequenceGroup]()
        self.num_places_swapped = 0
        self._num_aside = 0  # places that lanes want which are set aside
        self.num_seqs_finished = 0  # since the start
        self.held_sets = HeldSets()  # of the running lanes
        self._lacks: dict[Lane, Lack] = {}  # of those that were found not to fit

    @property
    def num_places_wanted(self) -> int:
        """By the waiting lanes, and those that are set aside."""
        return self.waiting.counted.num_places + self._num_aside

    @property
    def num_admissible_blocks(self) -> int:
        """Blocks that new lanes may take, and guesses."""
        device = self.blocks.device
        return device.num_free - (int(self._watermark * device.num_usable) if self.running else 0)

    def fits(self, lane: Lane, num_free: int, num_needed: Callable[[Lane], int]) -> bool:
        """Whether so many free blocks are as many as a lane without any needs. If not, they are
        counted again only once they may be.
        """
        lack = self._lacks.get(lane)
        if lack is not None and lack.holds(self.blocks.device, num_free):
            return False
        num_blocks = num_needed(lane)
        # What a step in flight still brings may change what it needs, and what it may share.
        is_settled = not any(seq.num_pending or lane.group.wants_prompt_logprobs(seq) for seq in lane.seqs)
        if num_blocks > num_free and is_settled:
            contents = {content for seq in lane.seqs for content in seq.block_hashes}
            self._lacks[lane] = Lack(self.blocks.device, num_blocks, contents)
        return num_blocks <= num_free

    def run(self, lane: Lane) -> None:
        """Move a waiting lane to the running queue; it has no blocks yet."""
        self._move(lane, Status.RUNNING)

    def requeue(self, lane: Lane) -> None:
        """Free its blocks; it will be computed again when it is its turn."""
        self._free(lane)
        for seq in lane.seqs:
            _forget_progress(seq)
        if lane.status in (Status.RUNNING, Status.SWAPPED):
            self._move(lane, Status.WAITING)

    def swap_out(self, lane: Lane) -> None:
        self.blocks.swap_out(lane.seqs)
        self._move(lane, Status.SWAPPED)

    def swap_in(self, lane: Lane) -> None:
        self.blocks.swap_in(lane.seqs, lane.group.prefix_salt)
        for seq in lane.seqs:
            if seq.drafter is not None:
                seq.drafter.moved()
        self._move(lane, Status.RUNNING)

    def set_aside(self, lane: Lane) -> None:
        """Hold it back until `bring_back`: another lane of its request computes the prompt."""
        self._move(lane, Status.ASIDE)

    def bring_back(self, group: SequenceGroup) -> None:
        """Queue the lanes held back: the prompt is computed, or one of them will compute it."""
        for lane in list(group.aside):
            self._move(lane, Status.WAITING)

    def finish(self, lane: Lane) -> None:
        """Remove a lane, even if a step with it is in flight."""
        self._move(lane, Status.FINISHED)
        self._free(lane)

    def _move(self, lane: Lane, to: Status) -> None:
        match lane.status:
            case Status.WAITING:
                self.waiting.remove(lane)
            case Status.RUNNING:
                remove(self.running, lane)
                self.cohorts.remove(lane)
                self._count_running(lane, -1)
                self.held_sets.release(lane.group.token_set)
            case Status.SWAPPED:
                remove(self.swapped, lane)
                count(self.swapped_groups, lane.group, -1)
                self.num_places_swapped -= lane.num_places
            case Status.ASIDE:
                lane.group.aside.remove(lane)
                self._num_aside -= lane.num_places
        lane.status = to
        self._lacks.pop(lane, None)
        match to:
            case Status.WAITING:
                self.waiting.add(lane)
            case Status.RUNNING:
                insert(self.running, lane)
                self.cohorts.add(lane)
                self._count_running(lane, 1)
                lane.group.set_number = self.held_sets.hold(lane.group.token_set)
            case Status.SWAPPED:
                insert(self.swapped, lane)
                count(self.swapped_groups, lane.group, 1)
                self.num_places_swapped += lane.num_places
            case Status.ASIDE:
                lane.group.aside.append(lane)
                self._num_aside += lane.num_places
            case Status.FINISHED:
                self.num_seqs_finished += lane.num_places

    def _count_running(self, lane: Lane, by: int) -> None:
        self.num_places += by * lane.num_places
        count(self.running_groups, lane.group, by)
        adapter = lane.group.request.adapter
        if adapter is not None:
            count(self.running_adapters, adapter.name, by)
            count(self.running_digests, adapter.digest, by)

    def _free(self, lane: Lane) -> None:
        for seq in lane.seqs:
            self.blocks.free(seq)


class Fetching:
    """Requests that are set aside until what the third tier has of their prompts has been read."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._groups: list[SequenceGroup] = []
        self._back: dict[SequenceGroup, bool] = {}  # came back, may not have begun: whether more is being read

    def __iter__(self) -> Iterator[SequenceGroup]:
        return iter(self._groups)

    def set_aside(self, lane: Lane) -> None:
        self._queues.set_aside(lane)
        self._groups.append(lane.group)

    def aside(self) -> tuple[int, int]:
        """How many requests, and the tokens of their prompts."""
        groups = {group for group in self._groups if group.aside}
        return len(groups), sum(len(group.prompt_token_ids) for group in groups)

    def counts(self) -> tuple[int, int]:
        """How many requests something is read for, also while they look again, and for how many
        nothing is any more, but they wait for their turn.
        """
        self._back = {group: is_reading for group, is_reading in self._back.items() if _has_not_begun(group)}
        looking = [is_reading for group, is_reading in self._back.items() if not group.aside]
        num_reading = sum(looking)
        return self.aside()[0] + num_reading, len(looking) - num_reading

    def bring_back(self) -> None:
        """All of them may look again."""
        groups, self._groups = self._groups, []
        for group in groups:
            if group.aside:
                self._back[group] = self._is_reading(group)
            self._queues.bring_back(group)

    def _is_reading(self, group: SequenceGroup) -> bool:
        shelf = self._queues.blocks.shelf
        sought = (content for seq in group.seqs for content in seq.block_hashes[: seq.num_sought_blocks])
        return shelf is not None and any(map(shelf.is_fetching, sought))


def _has_not_begun(group: SequenceGroup) -> bool:
    return not group.is_over and group.metrics.first_scheduled_time is None


def _forget_progress(seq: Sequence) -> None:
    seq.num_computed_tokens = 0
    seq.candidates = None
    if seq.drafter is not None:
        seq.drafter.forget()
