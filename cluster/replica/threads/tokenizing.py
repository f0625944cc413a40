"""Tokenizes prompts and decodes tokens, for /tokenize and /detokenize."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from cluster.replica.refusals.refusal import Refusal
from engine.errors import SquadronError
from engine.frontend.async_engine import AsyncEngine
from engine.outputs import Tokens
from engine.request import Request

Answer = TypeVar("Answer")


class Tokenizing:
    """In a thread of its own: neither deltas nor requests that are to be answered wait for it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizing")

    async def tokenize(self, request: Request, *, with_texts: bool) -> Tokens | Refusal:
        """Those of the request's prompt, as it would be computed; `with_texts` each one's own."""
        return await self._work(lambda: self._tokens(request, with_texts=with_texts))

    async def detokenize(self, token_ids: list[int]) -> str | Refusal:
        return await self._work(lambda: self._engine.tokenizer.decode(token_ids, skip_special_tokens=False))

    async def settings(self) -> dict[str, Any] | Refusal:
        """See `Tokenizer`."""
        return await self._work(lambda: self._engine.tokenizer.settings)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _tokens(self, request: Request, *, with_texts: bool) -> Tokens:
        token_ids = self._engine.prompt_ids(request)
        return Tokens(token_ids, self._engine.tokenizer.texts_of(token_ids) if with_texts else None)

    async def _work(self, work: Callable[[], Answer]) -> Answer | Refusal:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except SquadronError as error:
            return Refusal.of(error)
