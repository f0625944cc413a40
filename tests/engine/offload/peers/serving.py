"""A block server in a process of its own, with NIXL if it is installed."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from engine.offload.peers.block_server import BlockServer
from tests.engine.offload.peers.test_block_server import HOST, SECRET

SECONDS = 120.0  # to start, and to count


class Served(NamedTuple):
    """A server and its process."""

    address: str
    process: BaseProcess
    pipe: "Connection[int, dict[str, int]]"

    def num_served(self, num_files: int) -> dict[str, int]:
        """What it has served once that is so many files: it counts when a reader has read, which
        may have gone on by then.
        """
        self.pipe.send(num_files)
        return self.pipe.recv()


@contextmanager
def served_apart(folder: Path) -> Iterator[Served]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(str(folder), theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(SECONDS)
        yield Served(ours.recv(), process, ours)
    finally:
        process.kill()
        process.join()
        ours.close()


def _serve(folder: str, pipe: "Connection[object, int]") -> None:
    server = BlockServer(folder, HOST, SECRET, uses_nixl=True)
    pipe.send(server.address)
    while True:
        num_files = pipe.recv()
        deadline = time.monotonic() + SECONDS
        while server.answers.num_served.total() < num_files and time.monotonic() < deadline:
            time.sleep(0.001)
        pipe.send(dict(server.answers.num_served))
