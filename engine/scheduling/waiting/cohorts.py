"""Which running lanes a step serves.

Pipeline stages compute different steps at once. So lanes that decode are dealt out to as many
cohorts as there are stages, which take turns: a step looks at no lane that another step has.
Prompts are cut up over all steps, and each step may have a part of them.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from engine.scheduling.sequence import Lane
from engine.scheduling.waiting.waiting_queue import insert, remove

_order = attrgetter("order")
_num_places = attrgetter("num_places")
_turn = attrgetter("turn")


@dataclass(slots=True, eq=False)
class Cohort:
    """Lanes that decode in the same steps, in order."""

    lanes: list[Lane] = field(default_factory=list)
    num_places: int = 0
    turn: int = 0  # the last one it has had

    def add(self, lane: Lane) -> None:
        insert(self.lanes, lane)
        self.num_places += lane.num_places

    def remove(self, lane: Lane) -> None:
        remove(self.lanes, lane)
        self.num_places -= lane.num_places


class Cohorts:
    """Of the running lanes, each in one cohort or among the prompts."""

    def __init__(self, num_stages: int) -> None:
        self.prompts: list[Lane] = []  # those that do not decode yet, in order
        self._cohorts = [Cohort() for _ in range(num_stages)]
        self._cohort_of: dict[Lane, Cohort] = {}
        self._num_turns = 0

    def add(self, lane: Lane) -> None:
        """A lane begins to run."""
        insert(self.prompts, lane)

    def remove(self, lane: Lane) -> None:
        """It runs no more. The others are dealt out evenly again."""
        cohort = self._cohort_of.pop(lane, None)
        if cohort is None:
            remove(self.prompts, lane)
            return
        cohort.remove(lane)
        self._level()

    def scheduled(self, lane: Lane) -> None:
        """Some of its tokens are: it decodes from now on if no more than one is left."""
        if lane in self._cohort_of or not lane.is_decoding:
            return
        remove(self.prompts, lane)
        self._join(lane, min(self._cohorts, key=_num_places))

    def __iter__(self) -> Iterator[Cohort]:
        return iter(self._cohorts)

    def take_turn(self, is_ready: Callable[[Lane], bool], waiting: Collection[Cohort] = ()) -> list[Lane]:
        """The lanes that the next step serves, in order. Of the cohorts that do not wait and have a
        lane that is ready, it is the turn of the one whose last was the longest ago.
        """
        for cohort in sorted(self._cohorts, key=_turn):
            if cohort not in waiting and any(map(is_ready, cohort.lanes)):
                self._num_turns += 1
                cohort.turn = self._num_turns
                return sorted(self.prompts + cohort.lanes, key=_order) if self.prompts else cohort.lanes.copy()
        return self.prompts.copy()

    def _join(self, lane: Lane, cohort: Cohort) -> None:
        cohort.add(lane)
        self._cohort_of[lane] = cohort

    def _level(self) -> None:
        """Move lanes while that makes cohorts more alike."""
        while True:
            least, most = min(self._cohorts, key=_num_places), max(self._cohorts, key=_num_places)
            difference = most.num_places - least.num_places
            lane = next((lane for lane in reversed(most.lanes) if lane.num_places < difference), None)
            if lane is None:
                return
            most.remove(lane)
            self._join(lane, least)
