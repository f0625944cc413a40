"""What an engine replica answers to gateways and operators about its engine."""

from dataclasses import asdict
from typing import Any

from engine.errors import SquadronError
from engine.frontend.async_engine import AsyncEngine
from engine.request import Adapter, Request
from engine.sampling_params import SamplingParams
from engine.text.judging import judging


class Answers:
    """Of a started engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def stats(self) -> dict[str, Any]:
        """The engine's `EngineStats`."""
        return asdict(self._engine.observer.stats())

    async def probe(self, adapter: Adapter | None = None) -> str | None:
        """Generate a token, by every rank, with an adapter or without; what went wrong, a line."""
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
        try:
            async for output in self._engine.generate(Request("probe", [0], params, adapter=adapter)):
                if output.error is not None:
                    return output.error
        except SquadronError as error:
            return str(error)
        return None

    async def why(self, request_id: str) -> dict[str, Any] | None:
        """A request's `Why`; None if this engine does not know it."""
        try:
            return asdict(await self._engine.observer.why(request_id))
        except KeyError:
            return None

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
