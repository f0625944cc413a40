"""The answer of POST /v1/chat/completions, from deltas, complete or as events."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from cluster.api.model import Model
from cluster.api.requests.call import Call
from cluster.api.responses.chat_message import ChoiceParser
from cluster.api.responses.generation import Tally, Update, collect, finish_reason
from cluster.api.responses.logprobs import chat_logprobs, prompt_logprobs
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
        reason = parser.finish_reason(finish_reason(choice))
        choices.append(ChatChoice(choice.index, message, _logprobs(call, choice), reason, choice.stop_reason))
    of_prompt = joined.first[0].prompt_logprobs if call.prompt_logprobs else None
    shown = msgspec.UNSET if of_prompt is None else prompt_logprobs(of_prompt)
    answer = ChatCompletion(call.id, call.created, model.name, choices, usage, shown, call.warnings, tally.fingerprint)
    return msgspec.json.encode(answer)


async def chat_events(
    call: Call, model: Model, updates: AsyncGenerator[Update, None], plain: PlainEvents
) -> AsyncGenerator[bytes, None]:
    """The answer's events, one or more per delta, but for those that `plain` writes itself; raises
    ApiError.
    """
    tally = Tally(call)
    usage = None if call.include_usage else msgspec.UNSET
    parsers: dict[int, ChoiceParser] = {}
    prompt_ids: Sequence[int] = ()

    def chunk(choice: ChatChunkChoice, warnings: list[str] | msgspec.UnsetType = msgspec.UNSET) -> bytes:
        return event(
            ChatCompletionChunk(call.id, call.created, model.name, [choice], usage, warnings, tally.fingerprint)
        )

    def plain_event(text: str) -> bytes:
        return chunk(ChatChunkChoice(0, ChatDelta(content=text)))

    async with aclosing(updates):
        async for update in updates:
            tally.add(update)
            prompt_ids = prompt_ids or update.output.prompt_token_ids
            is_end = tally.is_whole and not call.include_usage
            events = []
            for number, delta in enumerate(update.output.outputs, 1):
                if delta.index not in parsers:
                    parsers[delta.index] = ChoiceParser(call.form, prompt_ids, call.id, delta.index)
                    events.append(chunk(ChatChunkChoice(delta.index, ChatDelta("assistant", ""))))
                parser = parsers[delta.index]
                parts = parser.deltas(delta.text, is_end=delta.finished)
                logprobs = _logprobs(call, delta)
                if logprobs is not None and not parts:
                    parts = [ChatDelta(content="")]
                for part in parts:
                    events.append(chunk(ChatChunkChoice(delta.index, part, logprobs)))
                    logprobs = None
                if delta.finished:
                    reason = parser.finish_reason(finish_reason(delta))
                    last = ChatChunkChoice(delta.index, ChatDelta(), None, reason, delta.stop_reason)
                    is_last = is_end and number == len(update.output.outputs)
                    events.append(chunk(last, call.warnings if is_last else msgspec.UNSET))
            if 0 in parsers and parsers[0].is_plain:
                plain.open(tally, plain_event)
            if events:
                yield b"".join(events)
    total = tally.close()
    if call.include_usage:
        yield event(ChatCompletionChunk(call.id, call.created, model.name, [], total, call.warnings, tally.fingerprint))
    yield DONE


def _logprobs(call: Call, choice: CompletionOutput) -> ChatLogprobs | None:
    if call.params.logprobs is None:
        return None
    return chat_logprobs(choice.token_ids, choice.logprobs or [], call.params.logprobs)
