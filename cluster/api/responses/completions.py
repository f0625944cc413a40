"""The answer of POST /v1/completions, from deltas, complete or as events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from cluster.api.models.model import Model
from cluster.api.requests.call import Call
from cluster.api.responses.generation import Tally, Update, collect, finish_reason, told_ids
from cluster.api.responses.logprobs import Offsets, completion_logprobs, echoed_logprobs, naming_of, prompt_logprobs
from cluster.api.responses.plain_events import PlainEvents
from cluster.api.responses.protocol import Completion, CompletionChoice, CompletionLogprobs
from cluster.api.responses.stream import DONE, event
from engine.errors import InvalidRequest
from engine.outputs import CompletionOutput, RequestOutput


async def completion_result(call: Call, model: Model, updates: AsyncGenerator[Update, None]) -> bytes:
    """The complete answer as JSON; raises ApiError, InvalidRequest."""
    tally, joined = await collect(call, updates)
    usage = tally.close()
    choices = []
    for index, choice in joined.choices():
        first = joined.first[index]
        shown = _choice(call, index, choice, _offsets(call, model), first=first)
        if call.prompt_logprobs and first.prompt_logprobs is not None:
            shown = msgspec.structs.replace(shown, prompt_logprobs=prompt_logprobs(first.prompt_logprobs))
        choices.append(shown)
    return msgspec.json.encode(
        Completion(call.id, call.created, call.model, choices, usage, call.warnings, *tally.engine)
    )


async def completion_events(
    call: Call, model: Model, updates: AsyncGenerator[Update, None], plain: PlainEvents
) -> AsyncGenerator[bytes, None]:
    """The answer's events, at most one per delta, but for those that `plain` writes itself; raises
    ApiError, InvalidRequest.
    """
    tally = Tally(call)
    first: dict[int, RequestOutput] = {}
    offsets: dict[int, Offsets] = {}  # of each choice

    def part(choice: CompletionChoice, warnings: list[str] | msgspec.UnsetType = msgspec.UNSET) -> bytes:
        return event(
            Completion(call.id, call.created, call.model, [choice], tally.chunk_usage, warnings, *tally.engine)
        )

    def plain_event(text: str) -> bytes:
        return part(CompletionChoice(0, text))

    async with aclosing(updates):
        async for update in updates:
            tally.add(update)
            plain.open(tally, plain_event)
            index = update.prompt_index
            first.setdefault(index, update.output)
            is_end = tally.is_whole and not call.include_usage
            events = []
            for position, delta in enumerate(update.output.outputs, 1):
                number = index * call.params.n + delta.index
                of_prompt = first[index] if number not in offsets else None
                offsets.setdefault(number, _offsets(call, model))
                choice = _choice(call, index, delta, offsets[number], first=of_prompt)
                if choice.text or choice.logprobs is not None or choice.finish_reason is not None or choice.token_ids:
                    is_last = is_end and position == len(update.output.outputs)
                    events.append(part(choice, call.warnings if is_last else msgspec.UNSET))
            if events:
                yield b"".join(events)
    total = tally.close()
    if call.include_usage:
        yield event(Completion(call.id, call.created, call.model, [], total, call.warnings, *tally.engine))
    yield DONE


def _offsets(call: Call, model: Model) -> Offsets:
    return Offsets(model.special_ids if call.params.skip_special_tokens else frozenset())


def _choice(
    call: Call, prompt_index: int, choice: CompletionOutput, offsets: Offsets, *, first: RequestOutput | None
) -> CompletionChoice:
    """A delta or a complete choice. `first`: has the prompt, for a choice's first delta."""
    echoed = first if call.echo else None
    return CompletionChoice(
        prompt_index * call.params.n + choice.index,
        choice.text if echoed is None else _prompt_text(echoed) + choice.text,
        _logprobs(call, choice, offsets, echoed),
        finish_reason(choice),
        choice.stop_reason,
        prompt_token_ids=msgspec.UNSET if first is None else told_ids(call, first.prompt_token_ids),
        token_ids=told_ids(call, choice.token_ids),
    )


def _prompt_text(output: RequestOutput) -> str:
    if output.prompt is None:
        raise InvalidRequest("A prompt of token ids cannot be echoed", param="echo", code="unsupported_value")
    return output.prompt


def _logprobs(
    call: Call, choice: CompletionOutput, offsets: Offsets, echoed: RequestOutput | None
) -> CompletionLogprobs | None:
    count = call.params.logprobs
    if count is None:
        return None
    if echoed is None:
        return completion_logprobs(choice.token_ids, choice.logprobs or [], count, offsets, naming_of(call))
    assert echoed.prompt_logprobs is not None, "the first delta has none, though they were asked for"
    prompt = echoed_logprobs(
        echoed.prompt_token_ids, echoed.prompt_logprobs, count, offsets, _prompt_text(echoed), naming_of(call)
    )
    own = completion_logprobs(choice.token_ids, choice.logprobs or [], count, offsets, naming_of(call))
    return CompletionLogprobs(
        prompt.tokens + own.tokens,
        prompt.token_logprobs + own.token_logprobs,
        prompt.top_logprobs + own.top_logprobs,
        prompt.text_offset + own.text_offset,
    )
