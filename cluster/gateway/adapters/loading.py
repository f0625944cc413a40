"""Adapters that are loaded and unloaded while the server runs.

A request carries its adapter, and a rank reads an adapter that it lacks. So requests keep an
adapter that was unloaded, and a process that starts later needs no message.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable

from cluster.api.errors import ApiError, Unavailable
from cluster.api.models.adapters import Adapters
from cluster.api.requests.fields import as_brief_json
from cluster.checkpoint.loadable import Loadable
from cluster.gateway.adapters.store import AdapterStore, Change
from engine.errors import InvalidConfig, InvalidRequest, going_on
from engine.request import Adapter

logger = logging.getLogger("squadron.gateway")

LOOK_SECONDS = 5.0  # between two looks at the store: a gateway may have missed what another one said
BEGIN_SECONDS = 0.5  # between two first looks, while nobody answers
RETRY_AFTER = 5.0  # seconds


class AdapterLoading:
    """An `AdapterLoader`: one gateway's."""

    def __init__(
        self,
        adapters: Adapters,
        loadable: Loadable,
        store: AdapterStore,
        probe: Callable[[Adapter], Awaitable[list[str]]],
        tell: Callable[[], Awaitable[None]],
    ) -> None:
        """`probe` has every rank of every engine replica compute with an adapter, and returns what
        went wrong; `tell` has all gateways `look`.
        """
        self._adapters = adapters
        self._loadable = loadable
        self._store = store
        self._probe = probe
        self._tell = tell
        self._turn = asyncio.Lock()
        self._looking = asyncio.Lock()  # so that what was read earlier never replaces what was read later
        self._others: list[AdapterLoading] = []
        self._writing = asyncio.Lock()
        # By name, of a load that failed when it was stored: itself, and what was stored before it.
        self._to_take_back: dict[str, tuple[Change, Change | None]] = {}

    def beside(self, loadings: Iterable["AdapterLoading"]) -> None:
        """Take turns with those of the application's other models: no two have an adapter of one
        name.
        """
        all_of_them = list(loadings)
        self._turn = all_of_them[0]._turn
        self._others = [other for other in all_of_them if other is not self]

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        async with self._turn:
            await self._look_at_all()
            self._check_name(name, in_place=in_place)
            try:
                adapter = await asyncio.to_thread(self._loadable.read, name, path)
            except InvalidConfig as error:
                raise InvalidRequest(str(error), param="lora_path") from None
            if problems := await self._probe(adapter):
                message = f"Not every engine replica could load {as_brief_json(name)}: {'; '.join(problems)}"
                raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER)
            await self._put(name, adapter, in_place=in_place)
            await self._tell()
        logger.info("adapter %s is loaded from %s", name, adapter.folder)

    async def unload(self, name: str) -> None:
        async with self._turn:
            await self.look()
            if self._adapters.find(name) is None:
                message = f"There is no adapter {as_brief_json(name)} here"
                raise ApiError(404, message, code="adapter_not_found", param="lora_name")
            # Others are forgotten: else the store would keep every name that ever was.
            after = Change(None) if self._adapters.is_given(name) else None
            while not await self._swap(name, (await self._store.read()).get(name), after):
                pass  # another gateway has changed it meanwhile
            await self._tell_all()
        logger.info("adapter %s is unloaded", name)

    async def look(self) -> None:
        """Learn what was loaded and unloaded on other gateways. What a load that failed has left is
        taken back before. Raises Unavailable.
        """
        async with self._looking:
            await self._take_back()
            changes = await self._store.read()
            self._adapters.change({name: change.adapter for name, change in changes.items()})

    async def begin(self) -> None:
        """The first look, as soon as Ray's head answers."""
        while True:
            try:
                return await self.look()
            except Unavailable as error:
                logger.warning("%s; the adapters of a model are not known yet", error)
            await asyncio.sleep(BEGIN_SECONDS)

    async def keep_looking(self) -> None:
        """For as long as the gateway lives."""
        while True:
            with going_on(logger, "looking for adapters"), contextlib.suppress(Unavailable):
                await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def _check_name(self, name: str, *, in_place: bool) -> None:
        if name in self._loadable.taken:
            raise InvalidRequest(f"{as_brief_json(name)} is the name of a model", param="lora_name")
        if self._is_of_another(name):
            raise _taken(name)
        if self._adapters.find(name) is not None and not in_place:
            raise _exists(name)

    async def _put(self, name: str, adapter: Adapter, *, in_place: bool) -> None:
        """Store it, unless another gateway has loaded one of that name meanwhile: for this model,
        or for another one, of which at least one of both sees it. Whatever fails, it is taken back:
        at once, or, while the store does not answer, at the first look that it answers.
        """
        change, before = Change(adapter, secrets.token_hex(8)), None
        try:
            while True:
                before = (await self._store.read()).get(name)
                if before is not None and before.adapter is not None and not in_place:
                    raise _exists(name)
                if await self._swap(name, before, change):
                    break
            await self._look_at_all()
            if self._is_of_another(name):
                raise _taken(name)
        except BaseException:
            self._to_take_back[name] = change, before
            await self._tell_all()
            raise

    async def _take_back(self) -> None:
        for name, (change, before) in list(self._to_take_back.items()):
            await self._swap(name, change, before)  # unless it has been changed since, or was never stored
            self._to_take_back.pop(name, None)

    async def _swap(self, name: str, before: Change | None, after: Change | None) -> bool:
        """Goes on if whoever waits for it is cancelled, as the store's thread does: what is stored
        or looked at after it must not come before it.
        """
        return await asyncio.shield(asyncio.create_task(self._swap_in_turn(name, before, after)))

    async def _swap_in_turn(self, name: str, before: Change | None, after: Change | None) -> bool:
        async with self._writing:
            return await self._store.swap(name, before, after)

    async def _tell_all(self) -> None:
        """A gateway that learns nothing now looks by itself in a while."""
        with contextlib.suppress(Unavailable):
            await self.look()
        await self._tell()

    async def _look_at_all(self) -> None:
        for loading in (self, *self._others):
            await loading.look()

    def _is_of_another(self, name: str) -> bool:
        return any(other._adapters.find(name) is not None for other in self._others)


def _exists(name: str) -> InvalidRequest:
    message = f"The adapter {as_brief_json(name)} is loaded already; load_inplace replaces it"
    return InvalidRequest(message, param="lora_name", code="adapter_exists")


def _taken(name: str) -> InvalidRequest:
    return InvalidRequest(f"{as_brief_json(name)} is an adapter of another model", param="lora_name")
