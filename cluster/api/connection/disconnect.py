"""Cancels work for clients that have disconnected."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

Result = TypeVar("Result")


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. If the client disconnects, `work` is cancelled and ClientDisconnect
    raised.
    """
    task = asyncio.current_task()
    assert task is not None
    num_cancels = task.cancelling()
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.uncancel() <= num_cancels:  # nobody else has cancelled it as well
            raise ClientDisconnect from None
        raise
    finally:
        watching.cancel()


def or_as_gone(receive: Receive, is_gone: asyncio.Event) -> Receive:
    """`receive`, which also tells that the client has disconnected once the event is set."""

    async def received() -> Message:
        receiving, going = asyncio.ensure_future(receive()), asyncio.ensure_future(is_gone.wait())
        try:
            await asyncio.wait((receiving, going), return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if going.done() else receiving.result()
        finally:
            receiving.cancel()
            going.cancel()

    return received
