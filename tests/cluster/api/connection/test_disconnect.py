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
