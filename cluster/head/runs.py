"""The run of an application: from its first deploy until it is deleted. Each `serve deploy` builds
it in another process, and may replace all of its gateways and engines; what clients and trainers
have loaded, updated or paused meanwhile is of the run, and stays.

The runs of one name have numbers. One has ended once a replica has seen that Serve deletes the
application, or when no gateway has said for minutes that it goes on.
"""

import asyncio
import logging
import time
from contextlib import suppress
from urllib.parse import quote

import msgspec

from cluster.head import store
from engine.errors import going_on

logger = logging.getLogger("squadron.gateway")

KEEP_SECONDS = 60.0  # between two words of a gateway that it goes on
GONE_SECONDS = 300.0  # without a word
KINDS = ("adapters", "weights")  # of what is kept of a run


class _Run(msgspec.Struct, frozen=True):
    name: str
    seen: float  # seconds since 1970: nodes' clocks have to agree by minutes


def run_of(app_name: str, token: str) -> str:
    """What its gateways and engines call the application's run. `token`: of the owner of the deploy
    that asks, whose run it is if it is the first one. Blocks, as the others do. Raises NoRecord.
    """
    while True:
        number, run = _last(app_name)
        if run is not None and time.time() - run.seen < GONE_SECONDS:
            return run.name
        own = _Run(store.digest(token), time.time())
        if store.claim(_key(app_name, number + 1), msgspec.json.encode(own)):
            if run is not None:
                store.delete(_key(app_name, number))
            _forget_others(app_name, own.name)
            return own.name


def place(kind: str, app_name: str, name: str) -> str:
    """Of what is kept of a run, until the application's next one begins: how its keys begin.
    `kind`: one of KINDS.
    """
    assert kind in KINDS
    return f"{kind}/{quote(app_name, safe='')}/{name}/"


async def keep(app_name: str, name: str) -> None:
    """Say every minute that the run goes on; does not return."""
    while True:
        await asyncio.sleep(KEEP_SECONDS)
        with going_on(logger, "saying that the application goes on"), suppress(store.NoRecord):
            await asyncio.to_thread(say_it_goes_on, app_name, name)


def say_it_goes_on(app_name: str, name: str) -> None:
    """Raises NoRecord."""
    number, run = _last(app_name)
    if run is not None and run.name == name:
        store.write(_key(app_name, number), msgspec.json.encode(_Run(name, time.time())))


def end(app_name: str) -> None:
    """The next deploy begins anew: if Ray's head does not answer, some minutes later."""
    with suppress(store.NoRecord):
        number, run = _last(app_name)
        if run is not None:
            store.delete(_key(app_name, number))


def _forget_others(app_name: str, name: str) -> None:
    for kind in KINDS:
        of_all = place(kind, app_name, "").removesuffix("/").encode()
        for other in {rest.partition(b"/")[0].decode() for rest in store.rests(of_all)} - {name}:
            store.delete_all(place(kind, app_name, other).encode())


def _last(app_name: str) -> tuple[int, _Run | None]:
    """Its number, and it, if there is one."""
    while numbers := store.numbers(_prefix(app_name)):
        value = store.read(_key(app_name, max(numbers)))
        if value is not None:  # otherwise it has just ended
            return max(numbers), msgspec.json.decode(value, type=_Run)
    return 0, None


def _key(app_name: str, number: int) -> bytes:
    return _prefix(app_name) + str(number).encode()


def _prefix(app_name: str) -> bytes:
    return f"runs/{quote(app_name, safe='')}/".encode()
