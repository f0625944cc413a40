"""Deploys of one application share a run; the next application of its name has another."""

import asyncio
from types import SimpleNamespace

import pytest

from cluster.head import runs, store
from cluster.weights.record import WeightsRecord
from tests.cluster.head.key_values import KeyValues

SECONDS = 120  # more than anything here takes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1e9)
    monkeypatch.setattr(runs.time, "time", lambda: clock.now)
    return clock


def test_each_deploy_goes_on_with_the_run_until_the_application_is_deleted(
    key_values: KeyValues, clock: SimpleNamespace
) -> None:
    first = runs.run_of("squadron", "of the first deploy")
    assert runs.run_of("squadron", "of the second one") == first
    assert runs.run_of("other", "of the second one") != first
    runs.end("squadron")
    second = runs.run_of("squadron", "of the second one")
    assert second != first and runs.run_of("squadron", "of the first deploy") == second
    runs.end("nobody")


def test_a_run_of_which_no_gateway_says_anything_has_ended(key_values: KeyValues, clock: SimpleNamespace) -> None:
    first = runs.run_of("squadron", "first")
    clock.now += runs.GONE_SECONDS - 1
    runs.say_it_goes_on("squadron", first)
    clock.now += runs.GONE_SECONDS - 1
    assert runs.run_of("squadron", "second") == first
    clock.now += 2
    second = runs.run_of("squadron", "second")
    assert second != first
    runs.say_it_goes_on("squadron", first)  # a gateway that was frozen
    assert runs.run_of("squadron", "third") == second
    assert len(key_values) == 1


@pytest.mark.parametrize("ends", [True, False])
def test_nothing_is_kept_of_earlier_runs(key_values: KeyValues, clock: SimpleNamespace, ends: bool) -> None:
    """Of a cluster that outlives many: each would leave thousands of keys."""
    others = {_written("squadron/2", "first"), _written("squadr", "first")}
    for number in range(3):
        run = _written("squadron", f"deploy {number}")
        assert run == runs.run_of("squadron", "the next deploy"), "which goes on with it"
        kept = {key.split(b"/")[2].decode() for key in key_values if key.startswith(b"weights/")}
        assert kept == {run, *others}
        if ends:
            runs.end("squadron")
        else:
            clock.now += runs.GONE_SECONDS + 1
    assert len(key_values) == 3 * 6 - ends


def _written(app_name: str, token: str) -> str:
    """A run in which weights and adapters were changed twice."""
    run = runs.run_of(app_name, token)
    weights = WeightsRecord(app_name, "engines", run, "/model")
    for _ in range(2):
        weights.write(weights.claim(1), None)
    store.write(runs.place("adapters", app_name, run).encode() + b"model/1", b"")
    store.write(runs.place("adapters", app_name, run).encode() + b"model/2", b"")
    return run


def test_of_two_that_begin_a_run_one_follows_the_other(key_values: KeyValues, clock: SimpleNamespace) -> None:
    others: list[str] = []
    key_values.then = lambda: others.append(runs.run_of("squadron", "other"))
    assert [runs.run_of("squadron", "own")] == others


def test_a_run_that_ends_while_it_is_looked_up(key_values: KeyValues, clock: SimpleNamespace) -> None:
    first = runs.run_of("squadron", "first")
    key_values.then = lambda: runs.end("squadron")
    assert runs.run_of("squadron", "second") != first


async def test_a_head_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def fail(app_name: str, name: str) -> None:
        loop.call_soon_threadsafe(asked.put_nowait, f"{app_name}/{name}")
        raise store.NoRecord("it does not answer")

    monkeypatch.setattr(runs, "say_it_goes_on", fail)
    monkeypatch.setattr(runs, "KEEP_SECONDS", 0.01)
    keeping = asyncio.create_task(runs.keep("squadron", "run"))
    assert [await asked.get() for _ in range(3)] == ["squadron/run"] * 3
    keeping.cancel()


async def test_a_word_that_fails_unforeseen_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def fail(app_name: str, name: str) -> None:
        loop.call_soon_threadsafe(asked.put_nowait, name)
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(runs, "say_it_goes_on", fail)
    monkeypatch.setattr(runs, "KEEP_SECONDS", 0.01)
    keeping = asyncio.create_task(runs.keep("squadron", "run"))
    async with asyncio.timeout(SECONDS):
        assert [await asked.get() for _ in range(2)] == ["run"] * 2
    keeping.cancel()
