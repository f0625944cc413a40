"""A block server in a process of its own, with NIXL if it is installed."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from engine.offload.peers.block_server import BlockServer
from tests.engine.offload.peers.test_block_server import HOST, SECRET

SECONDS = 120.0  # to start


class Served(NamedTuple):
    """`ask` is answered by what the server has served so far."""

    address: str
    process: BaseProcess
    pipe: "Connection[None, dict[str, int]]"

    def num_served(self) -> dict[str, int]:
        self.pipe.send(None)
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


def _serve(folder: str, pipe: "Connection[object, None]") -> None:
    server = BlockServer(folder, HOST, SECRET, uses_nixl=True)
    pipe.send(server.address)
    while True:
        pipe.recv()
        pipe.send(dict(server.answers.num_served))
