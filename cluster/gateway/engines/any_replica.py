"""A question that any engine replica can answer."""

import asyncio
from typing import Any

from cluster.api.errors import Unavailable
from cluster.replica.calls.engines import Engines
from cluster.replica.refusals.lost import EngineLost
from cluster.replica.refusals.refusal import Refusal
from engine.errors import Overloaded

MAX_AT_ONCE = 64  # of one gateway; each takes milliseconds
RETRY_AFTER = 5.0  # seconds


class AnyReplica:
    """One gateway's. All replicas would give the same answer: if one is lost, another is asked."""

    def __init__(self, engines: Engines, patience: float) -> None:
        """`patience`: seconds that a question waits for a replica."""
        self._engines = engines
        self._patience = patience
        self._num_open = 0

    async def ask(self, question: str, *args: Any) -> Any:
        """The answer. Raises the exception that a replica's `Refusal` stands for; Overloaded beyond
        MAX_AT_ONCE; Unavailable.
        """
        if self._num_open >= MAX_AT_ONCE:
            raise Overloaded(f"{self._num_open} questions for tokens wait already")
        self._num_open += 1
        try:
            async with asyncio.timeout(self._patience):
                answer = await self._ask(question, args)
        except TimeoutError:
            message = f"No engine replica answered within {self._patience:g} s"
            raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER) from None
        finally:
            self._num_open -= 1
        if isinstance(answer, Refusal):
            raise answer.to_exception()
        return answer

    async def _ask(self, question: str, args: tuple[Any, ...]) -> Any:
        while True:
            try:
                return await self._engines.ask_any(question, *args)
            except EngineLost:
                await asyncio.sleep(0.1)  # Serve learns that it is gone
