"""The last figures of every process, running or ended, so that a sum over them never falls.

Each process has a unique name, and its figures bear the time at which it made them, by its own
clock. To add them up, two processes exchange their ledgers; of two entries for one process the
later one counts. After an exchange both know the same. What a process has counted outlives it, as
long as any process that has its entry runs.

To bound the ledger's size, entries that have not changed for long are merged into one sum.
Processes need not do this at the same time: a merged sum names the entries that it contains, with
what each had counted. One that could not be reached for long and is back has an entry again, of
which that much does not count.
"""

from dataclasses import dataclass, field

from cluster.metrics.figures import Figures, summed, without

KEPT_SECONDS = 600.0  # after which a silent process is merged
NUM_NAMES_KEPT = 4096  # of merged ones
NUM_FIGURES_KEPT = 16  # with what they had counted; others that come back are not counted any more


@dataclass(frozen=True, slots=True)
class Entry:
    made: float  # seconds, by a clock of the process: to be compared with its other entries alone
    figures: Figures


@dataclass(slots=True)
class Ledger:
    """`entries` by name of the process; `gone` is the sum of `num_gone` others, the last of which
    are named: `merged` has their last entries, or None where these are no longer known.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    gone: Figures = field(default_factory=dict)
    num_gone: int = 0
    merged: dict[str, Entry | None] = field(default_factory=dict)  # in the order of merging

    def note(self, name: str, made: float, figures: Figures) -> None:
        """What a process has counted; older figures than the known ones change nothing."""
        known = self.entries.get(name) or self.merged.get(name)
        if not self.has_forgotten(name) and (known is None or known.made < made):
            self.entries[name] = Entry(made, figures)

    def learn(self, other: "Ledger") -> None:
        """All that the other one knows."""
        if other.num_gone > self.num_gone:
            self.gone, self.num_gone, self.merged = other.gone, other.num_gone, dict(other.merged)
            entries, self.entries = self.entries, {}
            for name, entry in entries.items():
                self.note(name, entry.made, entry.figures)
        for name, entry in other.entries.items():
            self.note(name, entry.made, entry.figures)

    def has_forgotten(self, name: str) -> bool:
        """Whether the process was merged, and nobody knows what it had counted by then."""
        return name in self.merged and self.merged[name] is None

    def total(self) -> Figures:
        return summed([self.gone, *map(self._not_merged, self.entries)])

    def merge(self, name: str) -> None:
        """Add up the figures of a process that seems to be gone for good."""
        self.gone = summed([self.gone, self._not_merged(name)])
        self.num_gone += 1
        self.merged.pop(name, None)
        self.merged[name] = self.entries.pop(name)
        silent = [each for each in self.merged if each not in self.entries]
        for each in silent[:-NUM_FIGURES_KEPT]:
            self.merged[each] = None
        for each in silent[:-NUM_NAMES_KEPT]:
            del self.merged[each]

    def _not_merged(self, name: str) -> Figures:
        """What the process has counted, without what is in the sum already."""
        figures, merged = self.entries[name].figures, self.merged.get(name)
        return figures if merged is None else without(figures, merged.figures)


class Silences:
    """How long the processes of a ledger have told nothing new, by this process' own clock: that of
    another machine may be set otherwise.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # the last entry's `made`, and when it was new here

    def tidy(self, ledger: Ledger, now: float) -> None:
        """Merge the entries of processes that are silent for long. To be called when all that live
        have just told their figures; `now`: seconds of a clock that is never set.
        """
        before, self._seen = self._seen, {}
        for name, entry in list(ledger.entries.items()):
            made, since = before.get(name, (None, now))
            since = since if made == entry.made else now
            if now - since > KEPT_SECONDS:
                ledger.merge(name)
            else:
                self._seen[name] = (entry.made, since)
