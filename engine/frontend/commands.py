"""Commands that other threads post for the engine's thread, to be executed between two steps."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar, TypeVarTuple, Unpack

from engine.errors import EngineDead

Answer = TypeVar("Answer")
Arguments = TypeVarTuple("Arguments")


class Commands:
    """Posted from any thread; executed in order by one thread."""

    def __init__(self) -> None:
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._commands)

    def post(self, command: Callable[[Unpack[Arguments]], None], *arguments: *Arguments) -> None:
        """Raises EngineDead after `close`: nobody would execute it."""
        with self._lock:
            if self._is_closed:
                raise EngineDead("the engine is shut down")
            self._commands.append(partial(command, *arguments))
        self._wake.set()

    async def ask(self, question: Callable[[], Answer]) -> Answer:
        """The answer of the thread that executes commands. Raises EngineDead."""
        future: Future[Answer] = Future()
        self.post(partial(_answer, future, question))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Take no more. Those that were taken are still to be done."""
        with self._lock:
            self._is_closed = True

    def do_all(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def wait(self, seconds: float = threading.TIMEOUT_MAX) -> None:
        """Wait for a command or for `wake`, so long at most."""
        if not self._commands:
            self._wake.wait(min(max(seconds, 0.0), threading.TIMEOUT_MAX))
        self._wake.clear()

    def wake(self) -> None:
        self._wake.set()


def _answer(future: Future[Answer], question: Callable[[], Answer]) -> None:
    if not future.set_running_or_notify_cancel():
        return  # the caller no longer waits
    try:
        future.set_result(question())
    except Exception as error:
        future.set_exception(error)
