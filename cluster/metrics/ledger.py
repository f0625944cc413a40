"""The last figures of every process, running or ended, so that a sum over them never falls.

Each process has a unique name, and its figures bear the time at which it made them, by its own
clock. To add them up, two processes exchange their ledgers; of two entries for one process the
later one counts. After an exchange both know the same. What a process has counted outlives it, as
long as any process that has its entry runs.

To bound the ledger's size, entries that have not changed for long are merged into one sum.
Processes need not do this at the same time: a merged sum names the entries that it contains. A
process that lives and finds its own name there counts on under another one.
"""

from collections import deque
from dataclasses import dataclass, field

from cluster.metrics.figures import Figures, summed

KEPT_SECONDS = 600.0  # after which a silent process is gone for good
NUM_NAMES_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Entry:
    made: float  # seconds, by a clock of the process: to be compared with its other entries alone
    figures: Figures


@dataclass(slots=True)
class Ledger:
    """`entries` by name of the process; `gone` is the sum of `num_gone` others, the last of which
    are named.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    gone: Figures = field(default_factory=dict)
    num_gone: int = 0
    names_gone: deque[str] = field(default_factory=lambda: deque(maxlen=NUM_NAMES_KEPT))

    def note(self, name: str, made: float, figures: Figures) -> None:
        """What a process has counted; older figures than the known ones change nothing."""
        known = self.entries.get(name)
        if (known is None or known.made < made) and name not in self.names_gone:
            self.entries[name] = Entry(made, figures)

    def learn(self, other: "Ledger") -> None:
        """All that the other one knows."""
        if other.num_gone > self.num_gone:
            self.gone, self.num_gone = other.gone, other.num_gone
            self.names_gone = deque(other.names_gone, NUM_NAMES_KEPT)
            for name in self.names_gone:
                self.entries.pop(name, None)
        for name, entry in other.entries.items():
            self.note(name, entry.made, entry.figures)

    def total(self) -> Figures:
        return summed([self.gone, *(entry.figures for entry in self.entries.values())])

    def merge(self, name: str) -> None:
        """Add up the figures of a process that is gone for good."""
        self.gone = summed([self.gone, self.entries.pop(name).figures])
        self.num_gone += 1
        self.names_gone.append(name)


class Silences:
    """How long the processes of a ledger have told nothing new, by this process' own clock: that of
    another machine may be set otherwise.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # the last entry's `made`, and when it was new here

    def tidy(self, ledger: Ledger, now: float) -> None:
        """Merge the entries of processes that are gone for good. To be called when all that live
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
