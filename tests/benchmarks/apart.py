"""A peer in a process of its own.

OpenMP's threads wait for work by spinning only while a process has no more of them than cores,
whichever pools they are in: two engines in one process slow each other even when they take turns,
ours to two thirds of its speed.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any, Self

import torch

from cluster.bench.workload import Work
from tests.benchmarks.peers import Peer, Times


class Apart(AbstractContextManager["Apart"]):
    """`make(*arguments, **named)` there; on this process' cores, with its number of threads."""

    def __init__(self, make: Callable[..., AbstractContextManager[Peer]], *arguments: Any, **named: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        call = (theirs, torch.get_num_threads(), make, arguments, named)
        self._process = spawn.Process(target=_answer, args=call, daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        self._pipe.recv()
        return self

    def run(self, works: Sequence[Work]) -> Times:
        """Raises EOFError if the process has died, of what it has printed."""
        self._pipe.send(works)
        times: Times = self._pipe.recv()
        return times

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join()


def _answer(pipe: Connection, num_threads: int, make: Any, arguments: Any, named: Any) -> None:
    torch.set_num_threads(num_threads)
    with make(*arguments, **named) as peer:
        pipe.send("ready")
        while True:
            try:
                works = pipe.recv()
            except EOFError:
                return
            pipe.send(peer.run(works))
