"""Steps as events of a Chrome trace (chrome://tracing, ui.perfetto.dev): a line for the driver, one
for each rank, and one for each sequence.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.records.timeline import StepRecord

_DRIVER, _FIRST_RANK, _FIRST_SEQUENCE = 0, 1, 1000  # lines


class ChromeTrace:
    """One engine's process of the trace. Events are JSON texts: there may be half a million."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lines: dict[str, int] = {}  # of sequences, by name
        self._num_ranks: int | None = None  # that have been named; None: nor has the driver

    def events(self, record: StepRecord) -> Iterator[str]:
        """Of one step, made as they are taken; records come in order."""
        step, name = record.step, f"step {record.step}"
        yield from self._name_ranks(len(record.execute_ns))
        yield self._slice(_DRIVER, f"schedule {step}", record.schedule_start, record.submitted, _facts(record))
        yield self._slice(_DRIVER, f"process {step}", record.finished, record.processed, {})
        for rank, nanoseconds in enumerate(record.execute_ns):
            started = max(record.finished - nanoseconds / 1e9, record.submitted)
            yield self._slice(_FIRST_RANK + rank, name, started, record.finished, {"epoch": record.epoch})
        yield from self._parts(record)

    def _parts(self, record: StepRecord) -> Iterator[str]:
        """What the step computed of each sequence."""
        nothing = [0] * len(record.request_ids)
        drafts, accepted = record.num_drafts or nothing, record.num_accepted or nothing
        head = f'{{"ph":"X","pid":{self._pid},{_times(record.submitted, record.finished)},"tid":'
        columns = (record.choices.tolist(), record.starts.tolist(), record.num_tokens.tolist(), drafts, accepted)
        for request_id, choice, start, count, num_drafts, num_accepted in zip(
            record.request_ids, *columns, strict=True
        ):
            line = self._lines.get(name := f"{request_id}/{choice}")
            if line is None:
                line = self._lines[name] = _FIRST_SEQUENCE + len(self._lines)
                yield self._name(line, name)
            kind = "decode" if count == 1 + num_drafts else "prefill"
            checked = f'"drafts":{num_drafts},"accepted":{num_accepted},' if num_drafts else ""
            facts = f'"start":{start},"tokens":{count},{checked}"step":{record.step}'
            yield f'{head}{line},"name":"{kind}","args":{{{facts}}}}}'

    def _name_ranks(self, num_ranks: int) -> list[str]:
        made = [] if self._num_ranks is not None else [self._name(_DRIVER, "driver")]
        named = self._num_ranks or 0
        self._num_ranks = max(named, num_ranks)
        return made + [self._name(_FIRST_RANK + rank, f"rank {rank}") for rank in range(named, num_ranks)]

    def _slice(self, line: int, name: str, start: float, end: float, facts: dict[str, Any]) -> str:
        return (
            f'{{"ph":"X","pid":{self._pid},{_times(start, end)},"tid":{line},"name":"{name}",'
            f'"args":{json.dumps(facts)}}}'
        )

    def _name(self, line: int, name: str) -> str:
        facts = {"ph": "M", "pid": self._pid, "tid": line, "name": "thread_name", "args": {"name": name}}
        return json.dumps(facts)


def _times(start: float, end: float) -> str:
    """In microseconds."""
    return f'"ts":{round(start * 1e6, 1)},"dur":{round((end - start) * 1e6, 1)}'


def _facts(record: StepRecord) -> dict[str, Any]:
    return {
        "sequences": len(record.request_ids),
        "tokens": int(np.sum(record.num_tokens)),
        "samples": record.num_samples,
        "blocks swapped out": record.num_swapped_out,
        "blocks swapped in": record.num_swapped_in,
        "blocks copied": record.num_copied,
        "preempted": record.preempted,
    }
