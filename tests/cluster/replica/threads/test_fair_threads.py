"""Time is divided by keys, and every work is done once."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from cluster.replica.threads.fair_threads import FairThreads
from engine.request import Share

SECONDS = 30
SLOW, QUICK = Share("slow"), Share("quick")


@pytest.fixture
def threads() -> Iterator[FairThreads]:
    made = FairThreads(2, "fair")
    yield made
    made.close()


class Gate:
    """Work that waits until it is let."""

    def __init__(self) -> None:
        self.begun, self._let = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self._let.wait(SECONDS)

    def let(self) -> None:
        self._let.set()


def noting(name: str, done: list[str]) -> Callable[[], None]:
    return lambda: done.append(name)


def test_a_key_has_never_all_threads(threads: FairThreads) -> None:
    gates = [Gate(), Gate()]
    first, second = [threads.submit(SLOW, gate) for gate in gates]
    assert gates[0].begun.wait(SECONDS)
    done: list[str] = []
    for number in range(3):
        threads.submit(QUICK, noting(str(number), done)).result(SECONDS)
    assert done == ["0", "1", "2"] and not gates[1].begun.is_set()
    for gate in gates:
        gate.let()
    first.result(SECONDS)
    second.result(SECONDS)


def test_the_key_that_was_given_less_is_next(threads: FairThreads) -> None:
    gates = {share: Gate() for share in (SLOW, QUICK)}
    running = [threads.submit(share, gate) for share, gate in gates.items()]
    for gate in gates.values():
        assert gate.begun.wait(SECONDS)
    done: list[str] = []
    waiting = [threads.submit(SLOW, noting("slow", done)) for _ in range(3)]
    gates[QUICK].let()  # it has been given less from now on than the other, whose work goes on
    running[1].result(SECONDS)
    waiting += [threads.submit(QUICK, noting("quick", done)) for _ in range(3)]
    for future in waiting[3:]:
        future.result(SECONDS)
    assert done == ["quick"] * 3
    gates[SLOW].let()
    for future in [running[0], *waiting]:
        future.result(SECONDS)
    assert done == ["quick"] * 3 + ["slow"] * 3


def test_every_work_of_many_keys_is_done_once(threads: FairThreads) -> None:
    done: list[str] = []
    names = [f"{number}" for number in range(200)]
    futures = [threads.submit(Share(f"key {int(name) % 7}"), noting(name, done)) for name in names]
    for future in futures:
        future.result(SECONDS)
    assert sorted(done, key=int) == names
    assert threads._given == {} and not any(threads._num_running.values())


def test_what_work_raises_its_future_raises(threads: FairThreads) -> None:
    def fail() -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        threads.submit(SLOW, fail).result(SECONDS)
    done: list[str] = []
    threads.submit(SLOW, noting("next", done)).result(SECONDS)
    assert done == ["next"]


def test_what_waits_at_the_end_is_cancelled(threads: FairThreads) -> None:
    gate = Gate()
    first = threads.submit(SLOW, gate)
    assert gate.begun.wait(SECONDS)
    second: Future[None] = threads.submit(SLOW, gate)
    threads.close()
    assert second.cancelled()
    gate.let()
    first.result(SECONDS)
