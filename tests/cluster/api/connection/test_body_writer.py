"""Whether a connection's offer to write is taken."""

import asyncio
import pickle

from cluster.api.connection.body_writer import offer, offered


def write(body: bytes) -> bool:
    return bool(body)


async def test_an_offer_counts_in_its_own_event_loop() -> None:
    """Serve may run the application in another thread than its server; its proxies send the scope
    to another process.
    """
    scope: dict[str, object] = {"extensions": {"other": {}}}
    offer(scope, asyncio.get_running_loop(), write)
    assert offered(scope) is write
    assert await asyncio.to_thread(lambda: asyncio.run(_offered_elsewhere(scope))) is None
    assert offered(pickle.loads(pickle.dumps(scope))) is None
    assert offered({}) is None


async def _offered_elsewhere(scope: dict[str, object]) -> object:
    return offered(scope)
