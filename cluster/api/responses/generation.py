"""Sends a call's requests to the service, and merges, counts and joins their deltas."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from cluster.api.errors import ApiError, request_failed
from cluster.api.requests.call import Call
from cluster.api.responses.protocol import FinishReason, PromptTokensDetails, Usage
from cluster.api.service import Service, Shortcut
from engine.errors import (
    DEADLINE_EXCEEDED,
    REQUEST_QUARANTINED,
    DeadlineExceeded,
    InvalidRequest,
    RequestQuarantined,
)
from engine.outputs import CompletionOutput, RequestOutput
from engine.request import ChatPrompt

STARTED_AT_ONCE = 8  # prompts of one call, which may be a thousand: other calls run in between


Ids = list[int] | UnsetType


class Update(NamedTuple):
    prompt_index: int
    output: RequestOutput


def run(service: Service, call: Call, shortcut: Shortcut | None = None) -> AsyncGenerator[Update, None]:
    """All requests' deltas as they arrive; closing it aborts running requests. A call of one choice
    may offer a `shortcut`, which is taken if its events differ in their texts alone.
    """
    if len(call.requests) == 1:
        has_shortcut = call.params.num_samples == 1 and call.is_of_texts
        return _updates(service, call, 0, shortcut if has_shortcut else None)
    return _merge([_updates(service, call, index) for index in range(len(call.requests))], call)


async def _updates(
    service: Service, call: Call, index: int, shortcut: Shortcut | None = None
) -> AsyncGenerator[Update, None]:
    """One request's deltas; errors about its prompt name the caller's field."""
    turn = call.turn
    begun = 0 if turn is None else call.requests[index].estimated_tokens
    if turn is not None:
        turn.begin(begun)
    try:
        async with aclosing(service.generate(call.requests[index], shortcut)) as stream:
            async for output in stream:
                if begun and turn is not None and output.prompt_token_ids:  # a `Tally` counts them
                    turn.settle(begun)
                    begun = 0
                if call.is_prompt_only:
                    output.outputs = list(map(_without_answer, output.outputs))
                yield Update(index, output)
    except DeadlineExceeded:
        raise
    except Exception as error:
        if turn is not None:
            turn.settle(begun)  # refused, or a failure of ours
        if isinstance(error, InvalidRequest) and error.param == "prompt":
            error.param = _prompt_param(call, index)
        raise


def _without_answer(choice: CompletionOutput) -> CompletionOutput:
    """Of a choice whose first token is its last, and is not shown."""
    has_failed = choice.finish_reason in ("abort", "error")
    return choice if has_failed else CompletionOutput(choice.index, "", [], finish_reason="length")


def _prompt_param(call: Call, index: int) -> str:
    """The caller's name of the prompt's field."""
    if call.params_of_prompts:
        return call.params_of_prompts[index]
    if isinstance(call.requests[index].prompt, ChatPrompt):
        return "messages"
    return "prompt" if len(call.requests) == 1 else f"prompt[{index}]"


class Tally:
    """Counts tokens and finished choices; raises ApiError if a choice failed or did not end."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._num_open = len(call.requests) * call.params.n
        self._prompt_tokens = [0] * len(call.requests)
        self._cached_tokens = [0] * len(call.requests)
        self._completion_tokens = 0
        self.fingerprint: str | None = None  # the last one received
        self.weights_version: str | UnsetType = UNSET  # likewise
        if call.turn is not None:
            call.turn.follow(self.num_tokens)

    @property
    def engine(self) -> tuple[str | None, str | UnsetType]:
        """What is told of it: its fingerprint, and the version of its weights."""
        return self.fingerprint, self.weights_version

    def add(self, update: Update) -> None:
        index, output = update
        if output.fingerprint is not None:
            self.fingerprint = output.fingerprint
            self.weights_version = UNSET if output.weights_version is None else output.weights_version
        self._prompt_tokens[index] = max(self._prompt_tokens[index], len(output.prompt_token_ids))
        self._cached_tokens[index] = max(self._cached_tokens[index], output.num_cached_tokens)
        for delta in output.outputs:
            self._completion_tokens += len(delta.token_ids)
            self._num_open -= delta.finished
            if delta.finish_reason == "error":
                if output.error_code == REQUEST_QUARANTINED:
                    raise RequestQuarantined(output.error)
                if output.error_code == DEADLINE_EXCEEDED:
                    raise DeadlineExceeded(output.error)
                raise request_failed(output.error, output.error_code)
            if delta.finish_reason == "abort":
                raise ApiError(500, "The request was aborted", code="request_aborted")

    def add_tokens(self, count: int) -> None:
        """Of an answer's only choice, which goes on."""
        self._completion_tokens += count

    def num_tokens(self) -> int:
        """Of the prompts and of what was computed so far: all there may be, as long as some of it
        is not told.
        """
        num_told, params = self._completion_tokens, self._call.params
        if params.num_samples > params.n:
            num_told = num_told * params.num_samples // params.n if self.is_whole else self._call.max_answer_tokens
        return sum(self._prompt_tokens) + num_told

    @property
    def is_whole(self) -> bool:
        """Whether every choice has finished."""
        return self._num_open == 0

    def close(self) -> Usage:
        """The token counts of the ended request."""
        if self._num_open:
            raise ApiError(500, f"The answer ended with {self._num_open} choices unfinished", code="generation_failed")
        return self._usage()

    @property
    def chunk_usage(self) -> Usage | UnsetType | None:
        """What a chunk says that is not the last one."""
        if self._call.has_usage_so_far:
            return self._usage()
        return None if self._call.include_usage else UNSET

    def _usage(self) -> Usage:
        num_prompt_tokens = sum(self._prompt_tokens)
        return Usage(
            num_prompt_tokens,
            self._completion_tokens,
            num_prompt_tokens + self._completion_tokens,
            PromptTokensDetails(sum(self._cached_tokens)),
        )


def finish_reason(choice: CompletionOutput) -> FinishReason | None:
    """In the API's terms: `Tally` has rejected others."""
    reason = choice.finish_reason
    assert reason != "abort" and reason != "error"
    return reason


def told_ids(call: Call, token_ids: Sequence[int]) -> Ids:
    """The token ids, if the call asks for them."""
    return list(token_ids) if call.has_token_ids else UNSET


class Joined:
    """Joins each choice's deltas."""

    def __init__(self) -> None:
        self._deltas: dict[tuple[int, int], list[CompletionOutput]] = {}
        self.first: dict[int, RequestOutput] = {}  # by prompt: its first delta, with data on the prompt

    def add(self, update: Update) -> None:
        self.first.setdefault(update.prompt_index, update.output)
        for delta in update.output.outputs:
            self._deltas.setdefault((update.prompt_index, delta.index), []).append(delta)

    def choices(self) -> Iterator[tuple[int, CompletionOutput]]:
        """(prompt index, choice), in the order of both."""
        for (prompt_index, _), deltas in sorted(self._deltas.items(), key=lambda item: item[0]):
            yield prompt_index, _whole(deltas)


async def collect(call: Call, updates: AsyncGenerator[Update, None]) -> tuple[Tally, Joined]:
    """All of a call's updates, counted and joined; raises ApiError."""
    tally, joined = Tally(call), Joined()
    async with aclosing(updates):
        async for update in updates:
            tally.add(update)
            joined.add(update)
    return tally, joined


def _whole(deltas: list[CompletionOutput]) -> CompletionOutput:
    last = deltas[-1]
    return CompletionOutput(
        last.index,
        "".join(delta.text for delta in deltas),
        [token_id for delta in deltas for token_id in delta.token_ids],
        cumulative_logprob=last.cumulative_logprob,
        logprobs=[position for delta in deltas for position in delta.logprobs or ()],
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )


async def _merge(streams: list[AsyncGenerator[Update, None]], call: Call) -> AsyncGenerator[Update, None]:
    """The call's updates as they arrive; the first error ends all."""
    news: asyncio.Queue[Update | Exception | None] = asyncio.Queue(maxsize=len(streams))

    async def pump(stream: AsyncGenerator[Update, None]) -> None:
        try:
            async with aclosing(stream):
                async for update in stream:
                    await news.put(update)
        except Exception as error:
            await news.put(error)
        else:
            await news.put(None)

    tasks: list[asyncio.Task[None]] = []
    num_open = len(streams)
    try:
        for stream in streams:
            tasks.append(asyncio.create_task(pump(stream)))
            if len(tasks) % STARTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        while num_open:
            match await news.get():
                case None:
                    num_open -= 1
                case Update() as update:
                    yield update
                case error:
                    if call.turn is not None and not isinstance(error, DeadlineExceeded):
                        call.turn.forgive()
                    raise error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
