"""Work for a client that may leave."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from cluster.api.connection.disconnect import unless_disconnected


class Client:
    """Sends the rest of a body, and leaves when it is told to."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self._rest = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive(self) -> Message:
        if self._rest:
            return self._rest.pop()
        await self.leaves.wait()
        return {"type": "http.disconnect"}


async def test_the_result_of_work_whose_client_stays() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    assert await unless_disconnected(Client().receive, work()) == "done"


async def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> str:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await unless_disconnected(Client().receive, work())


async def test_work_for_a_client_that_has_left_is_cancelled() -> None:
    client, ended = Client(), asyncio.Event()

    async def work() -> None:
        try:
            client.leaves.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ClientDisconnect):
        await unless_disconnected(client.receive, work())
    assert ended.is_set()


async def test_who_cancels_work_whose_client_leaves_has_it_cancelled() -> None:
    client = Client()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            client.leaves.set()

    task = asyncio.create_task(unless_disconnected(client.receive, work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nobody_watches_for_a_client_whose_work_is_done() -> None:
    client = Client()

    async def work() -> None:
        await asyncio.sleep(0)

    await unless_disconnected(client.receive, work())
    client.leaves.set()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
