"""Whether anybody starves, by what the scheduler promises of requests of one key and one priority.

- Those that wait are admitted in the order in which they came, preempted ones too. One that is set
  aside, until files of the third tier are read, does not wait meanwhile; that takes a few steps.
- So the first of those that wait is behind nobody but those that hold blocks, who become fewer
  until it is admitted.
- The first of all, once it runs, is never preempted for another, and gains something every few
  steps. So it ends, and then the next is the first.

During a trial of suspects (`engine.recovery.suspects`) the queue is closed but to a few.
"""

from engine.core.llm_engine import LLMEngine
from engine.scheduling.sequence import Lane, SequenceGroup, Status

State = tuple[object, ...]


class Turns:
    """Of one engine."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        queues = engine.scheduler.queues
        self._admit, queues.run = queues.run, self._run
        self._aside: dict[SequenceGroup, int] = {}  # for how many steps
        self._before: State = ()
        self._num_still = 0
        self.num_overtaken = 0  # lanes that waited when one that had come later was admitted
        self.most_aside = 0  # steps
        self.most_still = 0  # steps in which the first of all ran and gained nothing

    def look(self) -> None:
        """After each step."""
        aside = [group for group in self._engine.scheduler.third_tier.fetching if group.aside]
        self._aside = {group: self._aside.get(group, 0) + 1 for group in aside}
        self.most_aside = max([self.most_aside, *self._aside.values()])
        queues = self._engine.scheduler.queues
        first = min([*queues.running, *queues.swapped, *queues.waiting], key=lambda lane: lane.order, default=None)
        now = () if first is None or first.status is not Status.RUNNING else _state(first)
        self._num_still = self._num_still + 1 if now and now == self._before else 0
        self._before = now
        self.most_still = max(self.most_still, self._num_still)

    def complaints(self) -> list[str]:
        """As many steps as are in flight bring nothing new, nor does the one that takes their
        results; beside these, a step for each block that is brought from the host.
        """
        config, most_aside = self._engine.config, self._engine.executor.depth + 1
        most_still = most_aside + config.max_model_len // config.block_size
        found = []
        if self.num_overtaken:
            found.append(f"{self.num_overtaken} lanes waited when one that had come later was admitted")
        if self.most_aside > most_aside:
            found.append(f"a request was set aside for {self.most_aside} steps, not {most_aside}")
        if self.most_still > most_still:
            found.append(f"the first of all gained nothing in {self.most_still} steps, not {most_still}")
        return found

    def _run(self, lane: Lane) -> None:
        waiting = self._engine.scheduler.queues.waiting
        if not waiting.is_shut:
            self.num_overtaken += sum(other.order < lane.order for other in waiting)
        self._admit(lane)


def _state(lane: Lane) -> State:
    """What is another one once the lane has gained anything."""
    return lane.order, *[(seq.num_computed_tokens, len(seq.token_ids), seq.num_pending) for seq in lane.seqs]
