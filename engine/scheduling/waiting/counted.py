"""How much some of the waiting lanes want."""

from collections import Counter

from engine.scheduling.sequence import Lane, SequenceGroup


class Counted:
    """A request counts as long as one lane of it or more is here."""

    def __init__(self) -> None:
        self._num_lanes: Counter[SequenceGroup] = Counter()
        self.num_places = 0  # that the lanes want
        self.num_tokens = 0  # of the requests' prompts

    @property
    def num_requests(self) -> int:
        return len(self._num_lanes)

    def add(self, lane: Lane) -> None:
        self.num_places += lane.num_places
        self._num_lanes[lane.group] += 1
        if self._num_lanes[lane.group] == 1:
            self.num_tokens += len(lane.group.prompt_token_ids)

    def remove(self, lane: Lane) -> None:
        self.num_places -= lane.num_places
        self._num_lanes[lane.group] -= 1
        if not self._num_lanes[lane.group]:
            del self._num_lanes[lane.group]
            self.num_tokens -= len(lane.group.prompt_token_ids)


class Returning(Counted):
    """Those that have had a token, here or in an engine that was lost: they were let in before, and
    take nobody's place in the queue.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lanes: set[Lane] = set()  # a token may come to one that is not counted, from a step in flight

    def look_at(self, lane: Lane) -> None:
        """It waits from now on: count it if it has a token."""
        if any(seq.num_output_tokens for seq in lane.seqs):
            self._lanes.add(lane)
            self.add(lane)

    def forget(self, lane: Lane) -> None:
        """It waits no longer."""
        if lane in self._lanes:
            self._lanes.remove(lane)
            self.remove(lane)
