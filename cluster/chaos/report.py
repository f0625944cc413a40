"""The results of a run under faults: figures, a verdict, and every stream's hash, printed and
written as JSON.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from cluster.chaos.client import Stream
from cluster.chaos.compare import problems
from cluster.chaos.transcript import Transcript

SHOWN_PROBLEMS = 8
NOTICED_AFTER = 5.0  # seconds, at most, after a fault


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to the server, and when (seconds of time.monotonic())."""

    what: str
    at: float
    interrupts: bool = True  # from here on streams may be silent


@dataclass(slots=True)
class Report:
    """A run's figures. It fails if streams were lost, duplicated or changed, if there were too few
    faults, or if an expectation is `unmet`.
    """

    name: str
    num_faults_named: int
    faults: list[Fault]
    streams: list[Stream]
    expected: Mapping[int, Transcript]  # by the request's index
    tolerated: frozenset[str] = frozenset()  # failures that streams may have, if they are reported
    unmet: list[str] = field(default_factory=list)
    figures: dict[str, float | str] = field(default_factory=dict)  # further figures, by name
    problems: list[set[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.problems = [
            set(problems(stream.transcript, self.expected[stream.request.index])) for stream in self.streams
        ]
        if len(self.faults) < self.num_faults_named:
            self.unmet.append(f"{len(self.faults)} faults were delivered, not {self.num_faults_named}")
        if not self.streams:
            self.unmet.append("no stream was sent")
        if silent := self.counts["silently cut"]:
            self.unmet.append(f"{silent} streams ended early as if all were well")

    @property
    def counts(self) -> Counter[str]:
        """Numbers of streams lost, duplicated, changed; and of lost streams that ended without an
        error.
        """
        counts = Counter(problem for each in self.problems for problem in each)
        counts["silently cut"] = sum(stream.is_silently_cut for stream in self.streams)
        return counts

    @property
    def has_passed(self) -> bool:
        return not self.unmet and all(found <= self.tolerated for found in self.problems)

    @property
    def resume_seconds(self) -> list[float]:
        return sorted(resume_times(self.streams, [fault.at for fault in self.faults if fault.interrupts]))

    def lines(self) -> list[str]:
        """A report to read."""
        counts, resumed = self.counts, self.resume_seconds
        lines = [
            f"faults delivered   {len(self.faults)} of {self.num_faults_named} named",
            (
                f"streams            {len(self.streams)} of "
                f"{len({stream.request.index for stream in self.streams})} requests"
            ),
            *(f"{name:<19}{counts[name]}" for name in ("lost", "duplicated", "changed", "silently cut")),
        ]
        if resumed:
            shown = ", ".join(
                f"{name} {percentile(resumed, share):.2f}" for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1))
            )
            lines.append(f"time to resume, s  {shown} ({len(resumed)} interruptions)")
        lines += [f"{name:<18} {value}" for name, value in self.figures.items()]
        broken = [(stream, found) for stream, found in zip(self.streams, self.problems, strict=True) if found]
        for stream, found in broken[:SHOWN_PROBLEMS]:
            told = stream.error or "no error was told"
            lines.append(
                f"  request {stream.request.index} ({stream.request.kind}): {', '.join(sorted(found))}; {told}"
            )
        if len(broken) > SHOWN_PROBLEMS:
            lines.append(f"  and {len(broken) - SHOWN_PROBLEMS} more")
        lines += [f"  unmet: {each}" for each in self.unmet]
        return [*lines, f"{self.name}: {'passed' if self.has_passed else 'FAILED'}"]

    def write(self, path: Path) -> None:
        """All of it as JSON; raises OSError."""
        start = min((stream.sent for stream in self.streams), default=0.0)
        resumed = self.resume_seconds
        streams: list[dict[str, Any]] = [
            {
                "request": stream.request.index,
                "kind": stream.request.kind,
                "sent": round(stream.sent - start, 3),  # seconds
                "first": round(stream.arrivals[0] - start, 3) if stream.arrivals else None,
                "sha256": stream.transcript.digest(),
                "expected": self.expected[stream.request.index].digest(),
                "problems": sorted(found),
                "error": stream.error,
            }
            for stream, found in zip(self.streams, self.problems, strict=True)
        ]
        value = {
            "name": self.name,
            "passed": self.has_passed,
            "faults_named": self.num_faults_named,
            "faults": [{"what": fault.what, "seconds": round(fault.at - start, 3)} for fault in self.faults],
            "counts": {name: self.counts[name] for name in ("lost", "duplicated", "changed", "silently cut")},
            "resume_seconds": {
                name: percentile(resumed, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1)) if resumed
            },
            "figures": self.figures,
            "unmet": self.unmet,
            "streams": streams,
        }
        path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def resume_times(streams: Sequence[Stream], faults: Sequence[float]) -> list[float]:
    """Seconds from a fault to the end of the longest silence after it, of each stream under way,
    before the next fault.

    A silence that several faults fall into counts from the first of them. One that begins later
    than any fault is noticed is an ordinary one, of a stream that went on: it counts by itself.
    """
    times = []
    for stream in streams:
        counted = -1.0  # the end of the silence that was counted last
        for fault, following in pairwise([*faults, float("inf")]):
            silences = [
                (min(end, following) - max(begin, fault), end, begin)
                for begin, end in pairwise(stream.arrivals)
                if end > fault and begin < following
            ]
            if not silences or stream.arrivals[0] > fault:
                continue
            _, end, begin = max(silences)
            if end != counted:
                times.append(end - (begin if begin - fault > NOTICED_AFTER else fault))
                counted = end
    return times


def percentile(in_order: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return in_order[max(0, math.ceil(len(in_order) * share) - 1)]
