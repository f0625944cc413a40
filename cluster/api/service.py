"""What the HTTP layer asks of whoever answers its requests."""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from engine.outputs import RequestOutput
from engine.request import Request


class Service(Protocol):
    """Answers requests; the gateway is one."""

    def generate(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """The request's deltas, until each of its `params.n` choices has a finish_reason; those of
        a request that resumes are of the tokens after the ones it has.

        The first delta carries prompt_token_ids, and prompt_logprobs where they were asked for;
        `prompt` is the prompt's text, decoded if it came as token ids. Closing the generator aborts
        the request. Raises, before the first delta, InvalidRequest for what only the engine can
        know (a prompt too long: `context_length_exceeded`) or Overloaded, and at any time
        InputProcessingError, EngineDead, FingerprintChanged, RequestQuarantined or an ApiError.
        """

    async def health(self) -> list[str]:
        """What is wrong, a line each; nothing if requests can be taken."""

    async def deep_health(self) -> list[str]:
        """As `health`, having had every rank of every engine work for a token."""

    async def engines(self) -> list[dict[str, Any]]:
        """How each engine is: `replica`, `node`, `pid`, `problem` (None or a line) and its
        `stats`.
        """

    async def trace(self) -> dict[str, Any]:
        """The last steps of every engine, as a Chrome trace."""

    async def why(self, request_id: str) -> dict[str, float] | None:
        """Seconds by phase of a running or lately finished request; None for one that is not known
        (any more).
        """
