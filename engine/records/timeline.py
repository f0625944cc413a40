"""Records of the last steps, to be inspected."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NUM_STEPS_KEPT = 2048


@dataclass(slots=True)
class StepRecord:
    """One step: its sequences, what it computed and moved, and when. Times are seconds of
    `time.monotonic()`.
    """

    step: int
    epoch: int
    request_ids: list[str]  # a sequence each, in the order of the batch
    choices: list[int]
    starts: np.ndarray  # [S] first position computed
    num_tokens: np.ndarray  # [S]
    num_samples: int
    num_swapped_out: int  # blocks
    num_swapped_in: int
    num_copied: int
    preempted: list[str]
    schedule_start: float
    submitted: float
    finished: float = 0.0  # the result is here
    processed: float = 0.0
    execute_ns: tuple[int, ...] = ()  # each rank's own work
    num_drafts: list[int] = field(default_factory=list)  # [S] of the tokens, if any are
    num_accepted: list[int] = field(default_factory=list)  # [S] of these, likewise


class Timeline:
    """The last `capacity` steps."""

    def __init__(self, capacity: int = NUM_STEPS_KEPT) -> None:
        self.records: deque[StepRecord] = deque(maxlen=capacity)

    def steps_of(self, request_id: str, since: float, most: int) -> list[StepRecord]:
        """The last steps since then, at most `most`, that computed something of the request, in
        order.
        """
        found: list[StepRecord] = []
        for record in reversed(self.records):
            if record.processed < since:
                break
            if request_id in record.request_ids:
                found.append(record)
                if len(found) == most:
                    break
        return found[::-1]

    def chrome_trace(self) -> dict[str, Any]:
        """The steps as a Chrome trace (chrome://tracing, ui.perfetto.dev): the driver, each rank,
        and a line per request.
        """
        events: list[dict[str, Any]] = [_name(0, "driver")]
        ranks = max((len(record.execute_ns) for record in self.records), default=0)
        events += [_name(1 + rank, f"rank {rank}") for rank in range(ranks)]
        lines: dict[str, int] = {}
        for record in self.records:
            name = f"step {record.step}"
            events.append(_slice(0, f"schedule {record.step}", record.schedule_start, record.submitted, _facts(record)))
            events.append(_slice(0, f"process {record.step}", record.finished, record.processed, {}))
            for rank, nanoseconds in enumerate(record.execute_ns):
                started = max(record.finished - nanoseconds / 1e9, record.submitted)
                events.append(_slice(1 + rank, name, started, record.finished, {"epoch": record.epoch}))
            for index, request_id in enumerate(record.request_ids):
                line = lines.setdefault(f"{request_id}/{record.choices[index]}", 1000 + len(lines))
                part = {"start": int(record.starts[index]), "tokens": int(record.num_tokens[index])}
                num_drafts = record.num_drafts[index] if record.num_drafts else 0
                kind = "decode" if part["tokens"] == 1 + num_drafts else "prefill"
                if num_drafts:
                    part |= {"drafts": num_drafts, "accepted": record.num_accepted[index]}
                events.append(_slice(line, kind, record.submitted, record.finished, part | {"step": record.step}))
        return {"traceEvents": events + [_name(line, name) for name, line in lines.items()], "displayTimeUnit": "ms"}


def _facts(record: StepRecord) -> dict[str, Any]:
    return {
        "sequences": len(record.request_ids),
        "tokens": int(record.num_tokens.sum()),
        "samples": record.num_samples,
        "blocks swapped out": record.num_swapped_out,
        "blocks swapped in": record.num_swapped_in,
        "blocks copied": record.num_copied,
        "preempted": record.preempted,
    }


def _slice(line: int, name: str, start: float, end: float, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": 0,
        "tid": line,
        "name": name,
        "ts": start * 1e6,
        "dur": (end - start) * 1e6,
        "args": facts,
    }


def _name(line: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": line, "name": "thread_name", "args": {"name": name}}
