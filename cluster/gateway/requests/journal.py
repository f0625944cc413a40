"""The record of what one client has been sent. It takes each delta exactly once, and holds
everything that another engine replica needs to continue.
"""

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import Self

from cluster.api.service import Shortcut
from cluster.replica.delta_channel.messages import PlainDelta
from cluster.replica.refusals.lost import EngineLost
from engine.errors import DeadlineExceeded
from engine.outputs import Accumulator, CompletionOutput, FinishReason, RequestOutput
from engine.request import Request, Resume

MIN_SECONDS = 0.001  # that a request has left: none at all is not a timeout
MAX_PENDING = 64  # deltas that a slow reader has not taken; more are joined at once
MAX_JOINED = 512  # tokens, in one: with 20 logprobs each, an event of them has a megabyte


class Journal:
    """One request, from its first call to its last delta, over as many attempts as that takes.
    Lives in one event loop.

    The engine side writes (`accept`, `fail`), the client side iterates over what is new; a reader
    that is slow finds the deltas of several steps joined into one, where the request allows it.
    """

    def __init__(self, request_id: str, request: Request, shortcut: Shortcut | None = None) -> None:
        """`request_id`: the client's; the engine knows the request by another. `request`: as it is
        put to the first replica. `shortcut`: see `Service.generate`.
        """
        resume, num_choices = request.resume, request.params.num_samples
        self.request_id = request_id
        self.request = request  # the current attempt's
        self.attempt = resume.attempt
        self._timeout = request.timeout
        self.source: str | None = None  # the connection that brings the current attempt, once a replica has taken it
        self.has_gained = False  # tokens, in the current attempt
        self.max_tokens: int | None = None  # as the first attempt's replica fixed it; None before it told
        self.prompt_token_ids: list[int] = []  # as the first attempt's replica made them; empty before it told
        self.began_elsewhere = any(resume.output_ids)
        self.opened = time.monotonic()
        self.num_moves = 0  # from one replica to the next
        self.move_seconds = 0.0  # that these took
        self._moves_since: float | None = None
        self._fingerprint = resume.fingerprint  # of the current attempt's engine
        self._weights_version: str | None = None  # of that engine
        self._is_other_engine = False  # it has other weights now than the reader knows of
        self._is_bound = resume.fingerprint is not None
        self._prompt: str | None = None
        self.num_cached_tokens = 0
        self._output_ids = [list(ids) for ids in resume.output_ids] or [[] for _ in range(num_choices)]
        self._cumulative_logprobs = list(resume.cumulative_logprobs) or [0.0] * num_choices
        self.finish_reasons: dict[int, FinishReason | None] = {}  # of the choices that have finished
        self.first_token_time: float | None = None  # seconds of time.monotonic(), when it came from the replica
        self.last: RequestOutput | None = None  # the delta that finished the request
        self._finished = False
        self._shortcut = shortcut if num_choices == 1 else None
        self.num_shortcut_tokens = 0
        self._is_awaited = False  # the reader waits, and has had everything
        self._pending: list[RequestOutput] = []
        self._num_joined = 0  # of these, the first ones, which are joined already
        self._failure: Exception | None = None
        self._deadline = None if request.timeout is None else time.monotonic() + request.timeout
        self._ended_by: Exception | None = None  # whatever becomes of the attempt
        self._news = asyncio.Event()

    @property
    def is_told(self) -> bool:
        """Whether the reader has received everything."""
        return self._finished and not self._pending

    @property
    def num_open_choices(self) -> int:
        """That have not finished."""
        return len(self._output_ids) - len(self.finish_reasons)

    @property
    def output_ids(self) -> list[list[int]]:
        """Tokens taken so far, one list a choice, as the next attempt is given them; empty before
        the first token.
        """
        return [list(token_ids) for token_ids in self._output_ids] if any(self._output_ids) else []

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the engines that may continue the request; None while it has no token,
        because any engine may then.
        """
        return self._fingerprint if self._is_bound or any(self._output_ids) else None

    @property
    def cumulative_logprobs(self) -> list[float]:
        """Of the choices in `output_ids`, as far as the request asked for logprobs."""
        return list(self._cumulative_logprobs) if any(self._output_ids) else []

    def accept(self, delta: RequestOutput, source: str) -> bool:
        """Take the delta, which is changed here, if it is the next one of the current attempt;
        returns False for a delta of an earlier attempt or one already taken.

        A delta without outputs says that the replica has taken the request, or goes on with it by
        other weights, as whoever changed them wished. An engine that has slept since it started
        tells its fingerprint when it wakes up. A delta that skips tokens fails the attempt: the
        missing tokens would never come.
        """
        if delta.attempt != self.attempt or self.is_over:
            return False
        self.source = source
        if not (delta.outputs or delta.finished):
            if delta.fingerprint is not None:
                self._is_other_engine |= self._fingerprint not in (None, delta.fingerprint)
                self._fingerprint, self._weights_version = delta.fingerprint, delta.weights_version
            self._moved()
            return True
        open_ones = [output for output in delta.outputs if output.index not in self.finish_reasons]
        if not (open_ones or delta.finished):
            return False
        for output in open_ones:
            taken = len(self._output_ids[output.index])
            if output.first_index < taken:
                return False
            if output.first_index > taken:
                self.fail(EngineLost(f"choice {output.index} went on at token {output.first_index}, {taken} had come"))
                return False
        for output in open_ones:
            self._output_ids[output.index].extend(output.token_ids)
            self.has_gained |= bool(output.token_ids)
            if output.cumulative_logprob is not None:
                self._cumulative_logprobs[output.index] = output.cumulative_logprob
            if output.finished:
                self.finish_reasons[output.index] = output.finish_reason
        if self.has_gained and self.first_token_time is None:
            self.first_token_time = time.monotonic()
        delta.outputs = open_ones
        self._append(delta)
        return True

    def accept_plain(self, delta: PlainDelta, source: str) -> bool:
        """As `accept`, for a delta that may take the shortcut, as nearly every token does."""
        token_ids = self._output_ids[0]
        is_next = delta.attempt == self.attempt and delta.first_index == len(token_ids) and not self.finish_reasons
        is_next = is_next and not self._is_other_engine and self._failure is None and self._ended_by is None
        if not (is_next and self._is_awaited and self._shortcut is not None):
            return self.accept(delta.as_output(), source)
        if self._pending or not self._shortcut(delta.text, delta.token_ids):
            return self.accept(delta.as_output(), source)
        token_ids.extend(delta.token_ids)
        self.num_shortcut_tokens += len(delta.token_ids)
        self.has_gained = True
        return True

    def fail(self, failure: Exception) -> None:
        """End the attempt: the reader gets `failure` once it has had every delta taken before."""
        if not self._finished and self._failure is None:
            self._failure = failure
            self._news.set()

    def abort(self) -> None:
        """End the request as its caller wished: every choice that is still open finishes with
        "abort".
        """
        if self._finished:
            return
        outputs = [
            CompletionOutput(index, "", [], first_index=len(token_ids), finish_reason="abort")
            for index, token_ids in enumerate(self._output_ids)
            if index not in self.finish_reasons
        ]
        self._append(
            RequestOutput(
                self.request_id, self.attempt, self.prompt_token_ids, outputs, finished=True, prompt=self._prompt
            )
        )

    def expire(self) -> None:
        """The request's timeout has passed."""
        self.end(DeadlineExceeded(f"the answer was not complete after timeout={self._timeout:g} seconds"))

    def end(self, error: Exception) -> None:
        """End the request with `error`, in this attempt or between two."""
        if not self._finished and self._ended_by is None:
            self._ended_by = error
            self._news.set()

    def raise_if_ended(self) -> None:
        """Raises DeadlineExceeded, or what `end` was given."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self.expire()
        if self._ended_by is not None:
            raise self._ended_by

    @property
    def seconds_left(self) -> float:
        """Of the request's timeout."""
        return math.inf if self._deadline is None else max(self._deadline - time.monotonic(), MIN_SECONDS)

    def next_attempt(self, *, is_suspect: bool, blocks_at: str | None = None) -> None:
        """Begin the next attempt with all tokens received; from now on deltas of earlier attempts
        are rejected. `is_suspect`, `blocks_at`: see `Resume`.
        """
        self.attempt += 1
        self.num_moves += 1
        self._moves_since = self._moves_since or time.monotonic()
        self.source = None
        self.has_gained = False
        self._failure = None
        params = self.request.params
        self.request = replace(
            self.request,
            prompt=self.prompt_token_ids or self.request.prompt,
            params=replace(params, max_tokens=self.max_tokens or params.max_tokens),
            timeout=None if self._deadline is None else self.seconds_left,
            resume=Resume(
                self.attempt, self.output_ids, self.cumulative_logprobs, self.fingerprint, is_suspect, blocks_at
            ),
        )

    def _moved(self) -> None:
        """A replica has taken the request."""
        if self._moves_since is not None:
            self.move_seconds += time.monotonic() - self._moves_since
            self._moves_since = None

    @property
    def is_over(self) -> bool:
        """Whether nothing that is computed for it now will be read."""
        return self._finished or self._failure is not None or self._ended_by is not None

    async def rest(self, seconds: float) -> None:
        """Wait between two attempts; an abort ends it."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        """The new deltas, until the request has finished; raises the exception that `fail` was
        given.
        """
        while True:
            self._news.clear()
            if self._pending:
                return self._take()
            if self._finished:
                raise StopAsyncIteration
            self.raise_if_ended()
            if self._failure is not None:
                raise self._failure
            self._is_awaited = True
            await self._news.wait()
            self._is_awaited = False

    def _take(self) -> RequestOutput:
        if not self.request.joins_deltas:
            return self._pending.pop(0)
        news = _piece(self._pending)
        self._pending = self._pending[len(news) :]
        self._num_joined = max(self._num_joined - len(news), 0)
        return _join(news)

    def _append(self, delta: RequestOutput) -> None:
        """Queue the delta for the reader, with the client's request id and what the first one said
        of the prompt.
        """
        if not self.prompt_token_ids:
            self.prompt_token_ids, self._prompt = delta.prompt_token_ids, delta.prompt
            self.num_cached_tokens = delta.num_cached_tokens
            self.max_tokens = delta.max_tokens
        self._finished = delta.finished
        if delta.finished:
            self.last = delta
        delta.request_id = self.request_id
        delta.prompt_token_ids, delta.prompt = self.prompt_token_ids, self._prompt
        delta.num_cached_tokens = self.num_cached_tokens
        delta.max_tokens = self.max_tokens
        delta.fingerprint, delta.weights_version = self._fingerprint, self._weights_version
        self._is_other_engine = False
        if len(self._pending) - self._num_joined == MAX_PENDING and self.request.joins_deltas:
            rest, self._pending = self._pending[self._num_joined :], self._pending[: self._num_joined]
            while rest:
                piece = _piece(rest)
                self._pending.append(_join(piece))
                rest = rest[len(piece) :]
            self._num_joined = len(self._pending)
        self._pending.append(delta)
        self._news.set()


def _piece(deltas: list[RequestOutput]) -> list[RequestOutput]:
    """The first ones, as many as may be one."""
    num_tokens = 0
    for number, delta in enumerate(deltas):
        num_tokens += sum(len(output.token_ids) for output in delta.outputs)
        if number and num_tokens > MAX_JOINED:
            return deltas[:number]
    return deltas


def _join(deltas: list[RequestOutput]) -> RequestOutput:
    if len(deltas) == 1:
        return deltas[0]
    accumulator = Accumulator()
    for delta in deltas:
        accumulator.add(delta)
    assert accumulator.last is not None
    return accumulator.last
