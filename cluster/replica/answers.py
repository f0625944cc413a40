"""What an engine replica answers to gateways and operators about its engine."""

import asyncio
import time
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from engine.errors import Overloaded, SquadronError
from engine.frontend.async_engine import AsyncEngine
from engine.records.view import view
from engine.request import Adapter, Request
from engine.sampling_params import SamplingParams
from engine.text.judging import judging

PROBE_SECONDS = 20.0  # for a token; requests that came before are served before
PROBE_STEPS = 2  # that must have ended meanwhile if they take longer: one may have begun before
LOOK_SECONDS = 0.2  # between looks whether they have
VIEW_SECONDS = 0.3  # for the engine to answer: it does between two steps, and not while it replaces workers


class Answers:
    """Of a started engine."""

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        """`name`: the replica's."""
        self._engine = engine
        self._name = name
        self._last_view: dict[str, Any] | None = None
        self._viewing: asyncio.Task[None] | None = None  # that the engine has not answered yet

    def stats(self) -> dict[str, Any]:
        """The engine's `EngineStats`."""
        return asdict(self._engine.observer.stats())

    def load(self) -> float:
        """See `EngineStats.load`."""
        return self._engine.observer.load()

    async def probe(self, adapter: Adapter | None = None) -> str | None:
        """Generate a token, by every rank, with an adapter or without; what went wrong, a line. It
        takes its turn in the queue, which it leaves when nobody waits for its token any more. Where
        the queue is full, or takes longer, the ranks are as well if they compute other requests.
        """
        if (rest := self._engine.observer.rest()) is not None:
            return rest
        num_steps = self._engine.observer.stats().num_steps
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
        generating = self._engine.generate(Request("probe", [0], params, adapter=adapter))
        try:
            async with asyncio.timeout(PROBE_SECONDS), aclosing(generating) as outputs:
                async for output in outputs:
                    if output.error is not None:
                        return output.error
        except TimeoutError:
            if adapter is None and self._has_computed_since(num_steps):
                return None
            return f"it gave no token within {PROBE_SECONDS:.0f} s"
        except Overloaded as error:
            return str(error) if adapter is not None else await self._compute(num_steps)
        except SquadronError as error:
            return str(error)
        return None

    async def _compute(self, num_steps: int) -> str | None:
        """Wait until steps have ended since there were so many; what went wrong, a line."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                while not self._has_computed_since(num_steps):
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return f"its queue is full, and it ended no step within {PROBE_SECONDS:.0f} s"
        return None

    def _has_computed_since(self, num_steps: int) -> bool:
        return self._engine.observer.stats().num_steps >= num_steps + PROBE_STEPS

    async def why(self, request_id: str) -> dict[str, Any] | None:
        """A request's `Why`; None if this engine does not know it."""
        try:
            return asdict(await self._engine.observer.why(request_id))
        except KeyError:
            return None

    async def view(self) -> dict[str, Any] | None:
        """See `engine.records.view`; the last one if the engine does not answer now. It is then not
        asked again: a step may take longer than anybody waits. None before the first one.
        """
        if self._viewing is None:
            self._viewing = asyncio.create_task(self._view())
        viewing = self._viewing
        await asyncio.wait((viewing,), timeout=VIEW_SECONDS)
        if viewing.done():
            viewing.result()
        elif self._last_view is not None:
            self._last_view |= {"now": time.monotonic()}
        if self._last_view is None:
            return None
        config = self._engine.config
        shape = {"pipeline_parallel_size": config.pipeline_parallel_size, "block_size": config.block_size}
        return {"replica": self._name} | shape | self._last_view

    async def _view(self) -> None:
        try:
            self._last_view = view(await self._engine.observer.snapshot())
        finally:
            self._viewing = None

    def worker_pids(self) -> list[int]:
        """See `Executor`."""
        return list(self._engine.observer.worker_pids())

    def model_info(self) -> dict[str, Any]:
        """What the HTTP API needs to know of the model: the fields of a `Model`."""
        model = self._engine.model_config
        return {
            "max_model_len": self._engine.max_model_len,
            "vocab_size": model.vocab_size,
            "default_sampling": model.sampling_defaults(self._engine.config),
            "special_ids": self._engine.tokenizer.special_ids,
            "tool_format": self._engine.tokenizer.tool_format,
            "reasoning_ids": self._engine.tokenizer.reasoning_ids,
            "hidden_size": model.hidden_size,
            "embedding": self._engine.embedding,
            "judging": judging(self._engine.tokenizer),
            "text_limit": self._engine.tokenizer.text_limit(self._engine.max_model_len),
        }
