"""The last steps of all engine replicas, asked for a few at a time and written as they come."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from itertools import islice
from typing import Any

from engine.records.chrome_trace import ChromeTrace
from engine.records.timeline import NUM_STEPS_KEPT, StepRecord

STEPS_A_PAGE = 32  # of a replica, asked for at once
EVENTS_A_PIECE = 256  # which take about a millisecond; a step may have thousands

Ask = Callable[..., Awaitable[list[Any]]]  # `Engines.ask`


async def write_trace(asks: Sequence[Ask]) -> AsyncGenerator[bytes, None]:
    """Pieces of a Chrome trace, an event on a line; each replica is a process. Between two pieces
    the event loop has its turn.
    """
    traces: dict[tuple[int, str], ChromeTrace] = {}
    separator = '{"displayTimeUnit":"ms","traceEvents":[\n'
    for number, ask in enumerate(asks):
        async for replica, records in _last_steps(ask):
            trace = traces.setdefault((number, replica), ChromeTrace(len(traces)))
            for record in records:
                events = trace.events(record)
                while piece := list(islice(events, EVENTS_A_PIECE)):
                    yield (separator + ",\n".join(piece)).encode()
                    separator = ",\n"
                    await asyncio.sleep(0)
    yield b"]}" if traces else (separator + "]}").encode()


async def _last_steps(ask: Ask) -> AsyncGenerator[tuple[str, list[StepRecord]], None]:
    """Of each replica, with its name. No more than were kept at first, though an engine may be
    faster than the reader.
    """
    last: dict[str, int] = {}
    for _ in range(NUM_STEPS_KEPT // STEPS_A_PAGE):
        pages: list[tuple[str, list[StepRecord]]] = await ask("steps", last, STEPS_A_PAGE)
        for replica, records in pages:
            if records:
                last[replica] = records[-1].step
                yield replica, records
        if all(len(records) < STEPS_A_PAGE for _, records in pages):
            return
