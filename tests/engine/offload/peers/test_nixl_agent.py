"""Memory of one agent is read by another; what the library does to its process."""

import logging.config
import os
import subprocess
import sys
import time

import pytest

from engine.offload.peers.nixl_agent import NixlAgent, NixlFailed
from tests.engine.offload.peers.test_block_server import soon
from tests.engine.support.nixl import needs_nixl

SIZE = 100_000
IMPORTS = """
import logging.handlers, sys
import tests.engine.support.nixl
from engine.offload.peers.nixl_agent import NixlAgent

told = logging.StreamHandler(sys.stdout)
kept = logging.handlers.MemoryHandler(10, target=told)
logging.getLogger("other").addHandler(kept)
NixlAgent()
logging.getLogger("other").warning("it goes on")
kept.flush()
print(logging.raiseExceptions)
"""


@needs_nixl
def test_one_reads_anothers_memory() -> None:
    one, two = NixlAgent(), NixlAgent()
    there = one.register(SIZE)
    there.view[:] = os.urandom(SIZE)
    here = two.register(SIZE)
    name = two.meet(one.metadata)
    reading = two.begin_read(here, name, there.address + 10, SIZE - 10)
    deadline = soon()
    while not reading.is_over:
        one.move_on()
        assert time.monotonic() < deadline
    assert reading.is_done and here.view[: SIZE - 10] == there.view[10:]
    reading.release()
    two.forget(name)
    with pytest.raises(NixlFailed, match="nothing can be read there"):
        two.begin_read(here, name, there.address, SIZE)


@needs_nixl
def test_what_is_not_registered_is_not_read() -> None:
    one, two = NixlAgent(), NixlAgent()
    there, here = one.register(SIZE), two.register(SIZE)
    name = two.meet(one.metadata)
    with pytest.raises(NixlFailed):
        two.begin_read(here, name, there.address, SIZE + 1)


@needs_nixl
@pytest.mark.parametrize("metadata", [b"x", b"nixlSerDes|", os.urandom(300)])
def test_what_is_no_metadata_is_refused(metadata: bytes) -> None:
    with pytest.raises(NixlFailed, match="its agent cannot be met"):
        NixlAgent().meet(metadata)


@needs_nixl
def test_other_handlers_of_logging_stay_as_they_are() -> None:
    """The library's own set-up would close them, and lose what they hold."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["it goes on", "True"]


@needs_nixl
def test_an_idle_agent_uses_no_processor() -> None:
    before = len(os.listdir("/proc/self/task"))
    agents = [NixlAgent() for _ in range(3)]
    assert len(os.listdir("/proc/self/task")) - before <= 1, "but UCX's, which waits for connections"
    assert all(agent.metadata for agent in agents)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    configure = logging.config.dictConfig
    with pytest.raises(NixlFailed, match=r"nixl.*pip install 'squadron-serve\[nixl\]'"):
        NixlAgent()
    assert logging.config.dictConfig is configure
