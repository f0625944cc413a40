"""What one client has been sent: takes each delta exactly once, and knows what another engine replica needs to go on."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from engine.outputs import Accumulator, CompletionOutput, RequestOutput


class EngineLost(Exception):
    """The engine replica that a request was on is gone, or sent something that cannot be; `reason` is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineRefused(EngineLost):
    """The replica is there, but its engine has stopped: it will answer so until it is replaced."""


class Journal:
    """One request, from its admission to its last delta, over as many attempts as that takes. Lives in one event loop.

    The engine side writes (`accept`, `fail`), the client side reads (`read`); a reader that is slow finds the deltas of
    several steps joined into one.
    """

    def __init__(self, request_id: str, num_choices: int) -> None:
        self.request_id = request_id  # the client's; the engine knows the request by another
        self.attempt = 0
        self.source: str | None = None  # the connection that brings the current attempt, once that is known
        self._prompt_token_ids: list[int] = []
        self._prompt: str | None = None
        self._output_ids: list[list[int]] = [[] for _ in range(num_choices)]
        self._finished_choices: set[int] = set()
        self._finished = False
        self._pending: list[RequestOutput] = []
        self._failure: Exception | None = None
        self._news = asyncio.Event()

    @property
    def output_ids(self) -> list[list[int]]:
        """Tokens taken so far, one list a choice, as the next attempt is given them; empty before the first token."""
        return [list(token_ids) for token_ids in self._output_ids] if any(self._output_ids) else []

    def accept(self, delta: RequestOutput, source: str) -> bool:
        """Take the delta if it is the next one of the current attempt; False for an old one or one that came before.

        A delta that skips tokens fails the attempt: what is missing would never come.
        """
        if delta.attempt != self.attempt or self._finished or self._failure is not None:
            return False
        self.source = source
        for output in delta.outputs:
            taken = len(self._output_ids[output.index])
            if output.first_index < taken or output.index in self._finished_choices:
                return False
            if output.first_index > taken:
                self.fail(EngineLost(f"choice {output.index} went on at token {output.first_index}, {taken} had come"))
                return False
        for output in delta.outputs:
            self._output_ids[output.index].extend(output.token_ids)
            if output.finished:
                self._finished_choices.add(output.index)
        self._append(delta)
        return True

    def fail(self, failure: Exception) -> None:
        """End the attempt: the reader gets `failure` once it has had every delta taken before."""
        if not self._finished and self._failure is None:
            self._failure = failure
            self._news.set()

    def abort(self) -> None:
        """End the request as its caller wished: every choice that is still open finishes with "abort"."""
        if self._finished:
            return
        outputs = [
            CompletionOutput(index, "", [], first_index=len(token_ids), finish_reason="abort")
            for index, token_ids in enumerate(self._output_ids)
            if index not in self._finished_choices
        ]
        self._append(
            RequestOutput(
                self.request_id, self.attempt, self._prompt_token_ids, outputs, finished=True, prompt=self._prompt
            )
        )

    def next_attempt(self) -> int:
        """Begin the next attempt; from now on deltas of the ones before are refused."""
        self.attempt += 1
        self.source = None
        self._failure = None
        return self.attempt

    async def rest(self, seconds: float) -> None:
        """Wait between two attempts; an abort ends it."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)

    async def read(self) -> AsyncGenerator[RequestOutput, None]:
        """What is new, until the request has finished; raises what `fail` was given."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._pending:
                news, self._pending = self._pending, []
                yield _join(news)
                if news[-1].finished:
                    return
            if self._failure is not None:
                raise self._failure

    def _append(self, delta: RequestOutput) -> None:
        """Queue the delta for the reader, with the client's request id and the prompt, which the wire carries but once."""
        self._prompt_token_ids = delta.prompt_token_ids or self._prompt_token_ids
        self._prompt = delta.prompt if delta.prompt is not None else self._prompt
        self._finished = delta.finished
        self._pending.append(
            RequestOutput(
                request_id=self.request_id,
                attempt=delta.attempt,
                prompt_token_ids=self._prompt_token_ids,
                outputs=delta.outputs,
                finished=delta.finished,
                prompt=self._prompt,
                prompt_logprobs=delta.prompt_logprobs,
                num_cached_tokens=delta.num_cached_tokens,
                metrics=delta.metrics,
                error=delta.error,
            )
        )
        self._news.set()


def _join(deltas: list[RequestOutput]) -> RequestOutput:
    if len(deltas) == 1:
        return deltas[0]
    accumulator = Accumulator()
    for delta in deltas:
        accumulator.add(delta)
    assert accumulator.last is not None
    return accumulator.last
