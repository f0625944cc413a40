"""The harness' own tools: which processes it may harm, and what it makes of measurements."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

from engine.text.tokenizer import Tokenizer
from engine.worker.worker import Worker
from tests.end_to_end.chaos.drops import kept
from tests.end_to_end.chaos.injected.sitecustomize import HOLD, HOLD_SECONDS, RAISE, keep_busy, spoil
from tests.end_to_end.chaos.measured.sitecustomize import bytes_in_use
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.processes import (
    SharedMemory,
    Usage,
    descendants,
    find,
    is_alive,
    send,
    short_title,
    title_of,
    usage,
)
from tests.end_to_end.chaos.soak import Growth, Rest, rise
from tests.engine.worker.on_demo import MODEL, execute, make_config
from tests.engine.worker.steps import Part, generate, make_step

# A child that has a child; both wait for the end of their input.
FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A child of this process, and its child."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())


def test_only_processes_below_this_one_are_found(family: tuple[int, int]) -> None:
    child, grandchild = family
    assert {child, grandchild} <= set(descendants(os.getpid()))
    assert set(descendants(child)) == {grandchild}
    assert os.getpid() not in descendants(os.getpid())
    assert grandchild in find(sys.executable)
    assert find(sys.executable, root=grandchild) == []
    assert title_of(child).startswith(f"{sys.executable} -c")


def test_a_killed_process_is_not_alive_even_if_nobody_has_waited_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_alive(process.pid)
        assert send(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process.pid)
        assert process.pid not in find(sys.executable)
        process.wait()
        assert not send(process.pid, signal.SIGKILL)
        assert usage(process.pid) is None


def test_what_a_process_takes() -> None:
    before = usage(os.getpid())
    with open(os.devnull) as opened:
        held = bytearray(b"x" * (32 << 20))
        after = usage(os.getpid())
        assert before is not None
        assert after is not None
        assert after.num_descriptors == before.num_descriptors + 1
        assert after.memory_bytes >= before.memory_bytes + len(held) // 2
        assert after.num_threads >= 1
        assert not opened.closed


def test_what_comes_and_goes_is_no_rise() -> None:
    assert rise([5], median) == 0
    assert rise([5, 90, 5, 5, 5, 5, 5, 5, 5, 90, 5, 5], median) == 0
    assert rise([70, 5, 50, 5, 5, 5, 5, 5, 5, 90, 80, 6], min) == 1
    assert rise(range(100), median) == 75


def test_growth_that_is_too_much() -> None:
    def growth(*, resident: int = 0, in_use: int = 0, descriptors: int = 0, threads: int = 0) -> Growth:
        """MiB and numbers an hour, of eight hours."""
        taken = [Usage((resident * hour) << 20, descriptors * hour, threads * hour) for hour in range(8)]
        return Growth.of(taken, [Rest(0.0, 5 << 20), Rest(7 * 3600.0, (5 + 7 * in_use) << 20)])

    assert growth(in_use=1).complaints() == []
    assert growth(in_use=2, resident=1, descriptors=2, threads=1).complaints() == [
        "2.0 MiB in use an hour",
        "6.0 MiB resident",
        "12 descriptors",
        "6 threads",
    ]
    assert Growth.of([Usage(0, 0, 0)], []).complaints() == ["no process reported it"]


def test_a_slope_is_what_goes_on_and_not_a_single_step() -> None:
    def slope(*mib: float) -> float | None:
        rests = [Rest(hour * 3600.0, int(each * (1 << 20))) for hour, each in enumerate(mib)]
        return Growth.of([Usage(0, 0, 0)], rests).in_use_an_hour

    assert slope(50, 50, 58, 58, 58) == 0
    assert slope(50, 52, 54, 56, 58) == 2
    assert slope(50, 52, 52, 54, 56) == 2


def test_a_process_tells_what_it_has_in_use() -> None:
    before = bytes_in_use()
    small, large = [bytes(100) for _ in range(10_000)], bytearray(8 << 20)
    held = bytes_in_use() - before
    assert 9 << 20 < held < 11 << 20
    del small, large
    assert abs(bytes_in_use() - before) < 1 << 20


@pytest.mark.parametrize(
    ("title", "short"),
    [
        ("/usr/bin/python3.11 -u /opt/ray/log_monitor.py --session-dir=/tmp/x.py", "log_monitor.py"),
        ("/opt/ray/raylet/raylet --python_worker_command=/usr/bin/python /opt/ray/setup_worker.py", "raylet"),
        (
            "ray::ServeReplica:squadron:EngineDeployment.generate",
            "ray::ServeReplica:squadron:EngineDeployment.generate",
        ),
        ("", ""),
    ],
)
def test_what_a_command_line_runs(title: str, short: str) -> None:
    assert short_title(title) == short


def test_a_task_that_a_gateway_had_not_before_is_left() -> None:
    before = {"requests": 0, "waiting": 0, "tasks": {"watch": 2, "answer": 1}}
    assert kept(before | {"tasks": {"watch": 1, "answer": 1}}, before) == []
    now = {"requests": 1, "waiting": 0, "tasks": {"watch": 2, "answer": 3, "read": 1}}
    assert kept(now, before) == [
        "the gateway: 1 requests",
        "the gateway: 2 tasks of answer",
        "the gateway: 1 tasks of read",
    ]


def test_a_number_that_was_given_wins() -> None:
    assert [Options(quick=quick).pick(None, 8, 2) for quick in (False, True)] == [8, 2]
    assert Options(quick=True).pick(5, 8, 2) == 5


def test_shared_memory_is_that_of_own_processes() -> None:
    hold = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 1); print(flush=True); input()"
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as own, tempfile.NamedTemporaryFile(dir="/dev/shm") as foreign:
        own.write(b"x")
        own.flush()
        name, shared = Path(own.name).name, SharedMemory()
        with subprocess.Popen([sys.executable, "-c", hold, own.name], stdin=-1, stdout=-1) as process:
            assert process.stdout is not None
            process.stdout.readline()
            found = shared.look()
            process.kill()
        assert name in found and Path(foreign.name).name not in found
        assert name in shared.look(), "it was left behind"
    assert name not in shared.look()


def test_a_poisoned_prompt_breaks_its_step_and_no_other() -> None:
    class Spoiled(Worker):
        pass

    spoil(Spoiled)
    spoiled, plain = Spoiled(make_config()), Worker(make_config())
    for worker in (spoiled, plain):
        worker.initialize_cache(8, 0)
    prompts = [[40, *RAISE[1:], 41], [5, 6, 7]]
    assert generate(partial(execute, spoiled), prompts, 3) == generate(partial(execute, plain), prompts, 3)
    poisoned = make_step(9, [Part([40, *RAISE, 41], 0, [1])])
    with pytest.raises(RuntimeError, match="a poisoned prompt"):
        execute(spoiled, poisoned)
    execute(plain, poisoned)


def test_one_text_holds_the_interpreters_lock_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Holding(Tokenizer):
        pass

    keep_busy(Holding)
    held: list[int] = []
    monkeypatch.setattr("ctypes.PyDLL", lambda _: SimpleNamespace(sleep=held.append))
    holding, plain = Holding(MODEL), Tokenizer(MODEL)
    for text in ("Hello", HOLD):
        assert holding.encode(text, 64, keep=None, add_special_tokens=True) == plain.encode(text, 64)
    assert held == [HOLD_SECONDS]
