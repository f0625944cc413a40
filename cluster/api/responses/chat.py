"""The answer of POST /v1/chat/completions, from deltas, complete or as events."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from cluster.api.models.model import Model
from cluster.api.requests.call import Call
from cluster.api.responses.chat_message import ChoiceParser
from cluster.api.responses.generation import Ids, Tally, Update, collect, finish_reason, told_ids
from cluster.api.responses.logprobs import chat_logprobs, naming_of, prompt_logprobs
from cluster.api.responses.plain_events import PlainEvents
from cluster.api.responses.protocol import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
)
from cluster.api.responses.stream import DONE, event
from engine.outputs import CompletionOutput


async def chat_result(call: Call, model: Model, updates: AsyncGenerator[Update, None]) -> bytes:
    """The complete answer as JSON; raises ApiError."""
    tally, joined = await collect(call, updates)
    usage = tally.close()
    choices = []
    for _, choice in joined.choices():
        parser = ChoiceParser(call.form, joined.first[0].prompt_token_ids, call.id, choice.index)
        message = parser.message(choice.text)
        if call.echoed:
            message = msgspec.structs.replace(message, content=call.echoed + (message.content or ""))
        reason = parser.finish_reason(finish_reason(choice))
        logprobs, token_ids = _logprobs(call, choice), told_ids(call, choice.token_ids)
        choices.append(ChatChoice(choice.index, message, logprobs, reason, choice.stop_reason, token_ids))
    prompt = joined.first[0]
    of_prompt = prompt.prompt_logprobs if call.prompt_logprobs else None
    return msgspec.json.encode(
        ChatCompletion(
            call.id,
            call.created,
            call.model,
            choices,
            usage,
            msgspec.UNSET if of_prompt is None else prompt_logprobs(of_prompt),
            call.warnings,
            tally.fingerprint,
            told_ids(call, prompt.prompt_token_ids),
            tally.weights_version,
        )
    )


async def chat_events(
    call: Call, model: Model, updates: AsyncGenerator[Update, None], plain: PlainEvents
) -> AsyncGenerator[bytes, None]:
    """The answer's events, one or more per delta, but for those that `plain` writes itself; raises
    ApiError.
    """
    tally = Tally(call)
    choices: dict[int, _Choice] = {}

    def chunk(choice: ChatChunkChoice, *, is_last: bool = False, prompt_ids: Ids = msgspec.UNSET) -> bytes:
        said = (
            tally.chunk_usage,
            call.warnings if is_last else msgspec.UNSET,
            tally.fingerprint,
            prompt_ids,
            tally.weights_version,
        )
        return event(ChatCompletionChunk(call.id, call.created, call.model, [choice], *said))

    def plain_event(text: str) -> bytes:
        return chunk(ChatChunkChoice(0, ChatDelta(content=text)))

    prompt_ids: Sequence[int] = ()
    async with aclosing(updates):
        async for update in updates:
            tally.add(update)
            prompt_ids = prompt_ids or update.output.prompt_token_ids
            events = []
            for number, delta in enumerate(update.output.outputs, 1):
                if delta.index not in choices:
                    of_prompt = msgspec.UNSET if choices else told_ids(call, prompt_ids)
                    choices[delta.index] = choice = _Choice(call, prompt_ids, delta.index)
                    events.append(chunk(choice.first(), prompt_ids=of_prompt))
                is_end = tally.is_whole and not call.include_usage and number == len(update.output.outputs)
                for part in choices[delta.index].next(delta):
                    events.append(chunk(part, is_last=is_end and part.finish_reason is not None))
            if 0 in choices and choices[0].is_plain:
                plain.open(tally, plain_event)
            if events:
                yield b"".join(events)
    total = tally.close()
    if call.include_usage:
        said = (total, call.warnings, tally.fingerprint, msgspec.UNSET, tally.weights_version)
        yield event(ChatCompletionChunk(call.id, call.created, call.model, [], *said))
    yield DONE


class _Choice:
    """One choice of a stream."""

    def __init__(self, call: Call, prompt_ids: Sequence[int], index: int) -> None:
        self._call = call
        self._index = index
        self._parser = ChoiceParser(call.form, prompt_ids, call.id, index)
        self._pending = [ChatDelta(content=call.echoed)] if call.echoed else []

    @property
    def is_plain(self) -> bool:
        """See `ChoiceParser`."""
        return self._parser.is_plain

    def first(self) -> ChatChunkChoice:
        """Says whose message it is."""
        return ChatChunkChoice(self._index, ChatDelta("assistant", ""))

    def next(self, delta: CompletionOutput) -> list[ChatChunkChoice]:
        """The delta's chunks: those of its parts, and one that says why the choice ended."""
        parts = self._pending + self._parser.deltas(delta.text, is_end=delta.finished)
        self._pending = []
        logprobs, token_ids = _logprobs(self._call, delta), told_ids(self._call, delta.token_ids)
        if not parts and (logprobs is not None or token_ids):
            parts = [ChatDelta(content="")]
        made = [ChatChunkChoice(self._index, part) for part in parts]
        if made:  # the first of them has what is said of the delta's tokens
            made[0] = ChatChunkChoice(self._index, parts[0], logprobs, token_ids=token_ids)
        if delta.finished:
            reason = self._parser.finish_reason(finish_reason(delta))
            made.append(ChatChunkChoice(self._index, ChatDelta(), None, reason, delta.stop_reason))
        return made


def _logprobs(call: Call, choice: CompletionOutput) -> ChatLogprobs | None:
    if call.params.logprobs is None:
        return None
    return chat_logprobs(choice.token_ids, choice.logprobs or [], call.params.logprobs, naming_of(call))
