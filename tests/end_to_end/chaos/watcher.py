"""Watches the server's processes while something is done to it."""

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Watcher(ABC):
    """A context: measures at its begin, in `watch` beside what happens in it, and at its end."""

    async def __aenter__(self) -> Self:
        await self.begin()
        self._watching = asyncio.create_task(self.watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watching.cancel()
        await self.end()

    @abstractmethod
    async def begin(self) -> None: ...

    @abstractmethod
    async def watch(self) -> None:
        """Until it is cancelled."""

    @abstractmethod
    async def end(self) -> None: ...
