"""How files are dealt out to processes: all of them, each to one, and the shared server's last."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.lanes import HERE, LAST, LONG, ROOT, Lanes, kind

FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
TESTS = [f"{file}::test_{number}" for file in FILES for number in range(4)]


class Process:
    """One that runs a test of those that it was given at each turn."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.waiting: list[int] = []
        self.files: list[str] = []

    def send_runtest_some(self, indexes: list[int]) -> None:
        assert not self.shutting_down
        self.waiting += indexes
        self.files.append(TESTS[indexes[0]].partition("::")[0])

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.mark.parametrize("num_processes", [1, 2, 3, 4])
@pytest.mark.parametrize("slow", [None, 0, 1, 2])
def test_every_file_is_taken_once_and_none_that_starts_ray_after_the_server(
    pytestconfig: pytest.Config, num_processes: int, slow: int | None
) -> None:
    processes: list[Any] = [Process(number) for number in range(num_processes)]
    config: Any = SimpleNamespace(
        option=SimpleNamespace(), getvalue={"tx": ["popen"] * num_processes}.get, hook=pytestconfig.hook
    )
    lanes = Lanes(config)
    for process in processes:
        lanes.add_node(process)
        lanes.add_node_collection(process, TESTS)
    lanes.schedule()
    turn = 0
    while any(process.waiting for process in processes):
        turn += 1
        for number, process in enumerate(processes):
            # A process keeps its last test until it gets another one, or is told to end.
            may_run = len(process.waiting) > 1 or (process.waiting and process.shutting_down)
            if may_run and (number != slow or turn % 9 == 0):
                lanes.mark_test_complete(process, process.waiting.pop(0))
    assert lanes.tests_finished and not lanes.has_pending
    assert sorted(file for process in processes for file in process.files) == FILES
    for process in processes:
        kinds = [kind(file) for file in process.files]
        assert "server" not in kinds or "here" not in kinds[kinds.index("server") :]
        if LAST in process.files:
            assert "server" not in kinds[process.files.index(LAST) + 1 :]


def test_files_that_are_named_are_there() -> None:
    for beginning in (*HERE, *LONG, LAST):
        assert any(file.startswith(beginning) for file in FILES), beginning


def test_a_process_that_crashes_takes_one_test_along(pytestconfig: pytest.Config) -> None:
    """And another process takes its place."""
    processes: list[Any] = [Process(number) for number in range(4)]
    config: Any = SimpleNamespace(option=SimpleNamespace(), getvalue={"tx": ["popen"] * 3}.get, hook=pytestconfig.hook)
    lanes = Lanes(config)
    for process in processes[:3]:
        lanes.add_node(process)
        lanes.add_node_collection(process, TESTS)
    lanes.schedule()
    done: list[str] = []
    for turn in range(10 * len(TESTS)):
        if turn == len(TESTS) // 10:
            crashed = lanes.remove_node(processes.pop(1))
            assert crashed is not None and crashed not in done
            done.append(crashed)
            lanes.add_node(processes[-1])
            lanes.add_node_collection(processes[-1], TESTS)
            lanes.schedule()
        for process in processes[:3]:
            if len(process.waiting) > 1 or (process.waiting and process.shutting_down):
                done.append(TESTS[process.waiting[0]])
                lanes.mark_test_complete(process, process.waiting.pop(0))
    assert sorted(done) == sorted(TESTS)
    assert all(process.shutting_down for process in processes)
