"""A gateway that starts, and learns of the model from an engine replica, as far as Serve lets
it.
"""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from cluster.gateway.engines import serve_engines
from cluster.gateway.engines.serve_engines import ServeEngines

MODEL = {"vocab_size": 8}


class Call:
    """A call through Serve: its result, an exception, or, where that is None, no answer."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self.is_cancelled = False

    def __await__(self) -> Generator[Any, None, Any]:
        if self._result is None:
            yield from asyncio.Event().wait().__await__()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def cancel(self) -> None:
        self.is_cancelled = True


class Handle:
    """Of engine replicas: the calls are given out in turn."""

    app_name, deployment_name = "squadron", "EngineDeployment"

    def __init__(self, *results: Any) -> None:
        self.calls = [Call(result) for result in results]
        self._rest = iter(self.calls)

    @property
    def model_info(self) -> "Handle":
        return self

    def remote(self) -> Call:
        return next(self._rest)


class Left(Exception):
    """In place of the process' end."""


class Engines(ServeEngines):
    def __init__(self, handle: Handle, *, running: tuple[bool, ...]) -> None:
        """`running`: what Serve's controller says, each time that it is asked; the last one for
        ever.
        """
        super().__init__(handle, "run", "/model")  # type: ignore[arg-type]
        self._said = list(running)

    async def are_running(self) -> bool:
        return self._said.pop(0) if len(self._said) > 1 else self._said[0]

    async def leave(self) -> None:
        raise Left


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_engines, "BLIND_SECONDS", 0.05)
    monkeypatch.setattr(serve_engines, "INTRODUCTION_SECONDS", 0.0)


async def test_a_gateway_that_hears_of_no_replica_that_runs_is_replaced() -> None:
    handle = Handle(None)
    with pytest.raises(Left):
        await Engines(handle, running=(True,)).model_info()
    assert handle.calls[0].is_cancelled


async def test_a_replica_that_starts_is_waited_for() -> None:
    handle = Handle(None, None, MODEL)
    # What is said before each of the three calls.
    assert await Engines(handle, running=(False, False, True)).model_info() == MODEL
    assert [call.is_cancelled for call in handle.calls[:2]] == [True, True]


async def test_a_replica_that_dies_as_it_is_asked_is_followed_by_the_next() -> None:
    assert await Engines(Handle(ActorDiedError(), MODEL), running=(True,)).model_info() == MODEL
