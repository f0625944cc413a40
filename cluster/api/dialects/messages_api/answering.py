"""The answer of POST /v1/messages, from deltas, whole or as events."""

from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from cluster.api.dialects.messages_api.answer import (
    BlockDelta,
    Event,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessagesUsage,
    Ping,
    Stop,
    StopReason,
    TextDelta,
    ThinkingCount,
)
from cluster.api.dialects.messages_api.blocks import Blocks
from cluster.api.dialects.messages_api.to_chat import NAMES
from cluster.api.dialects.one_choice import Events, OneChoice, Updates, deltas_of
from cluster.api.models.model import Model
from cluster.api.requests.call import Call
from cluster.api.responses.plain_events import PlainEvents
from cluster.api.responses.stream import named_event


async def message_result(call: Call, model: Model, updates: Updates) -> bytes:
    """The complete answer as JSON; raises ApiError, InvalidRequest."""
    choice, blocks = OneChoice(call), Blocks()
    async with aclosing(deltas_of(choice, updates, NAMES)) as parts:
        async for deltas in parts:
            for delta in deltas:
                list(blocks.add(delta))
    num_tokens = choice.close().completion_tokens
    usage = _of_message(_usage(choice, num_tokens))
    stop = _stop(choice, num_tokens, call, model)
    answer = MessageAnswer(
        call.id,
        call.model,
        blocks.all(),
        usage,
        stop.stop_reason,
        stop.stop_sequence,
        warnings=call.warnings,
        system_fingerprint=choice.tally.fingerprint,
        weights_version=choice.tally.weights_version,
    )
    return msgspec.json.encode(answer)


async def message_events(call: Call, model: Model, updates: Updates, plain: PlainEvents) -> Events:
    """The answer's events, one or more per delta, but for those that `plain` writes itself; raises
    ApiError, InvalidRequest.
    """
    choice, blocks = OneChoice(call), Blocks()
    has_begun = False

    def plain_event(text: str) -> bytes:
        assert blocks.open_text is not None
        return _written([BlockDelta(blocks.open_text, TextDelta(text))])

    async with aclosing(deltas_of(choice, updates, NAMES)) as parts:
        async for deltas in parts:
            events: list[Event] = [] if has_begun else [_start(call, choice), Ping()]
            has_begun = True
            for delta in deltas:
                events += blocks.add(delta)
            if choice.is_plain and blocks.open_text is not None:
                plain.open(choice.tally, plain_event)
            if events:
                yield _written(events)
    num_tokens = choice.close().completion_tokens
    end = MessageDelta(_stop(choice, num_tokens, call, model), _usage(choice, num_tokens), warnings=call.warnings)
    yield _written([*blocks.end(), end, MessageStop()])


def _written(events: list[Event]) -> bytes:
    return b"".join(named_event(event) for event in events)


def _start(call: Call, choice: OneChoice) -> MessageStart:
    usage, (fingerprint, version) = _of_message(_usage(choice, 0)), choice.tally.engine
    begun = MessageAnswer(
        call.id, call.model, [], usage, None, None, system_fingerprint=fingerprint, weights_version=version
    )
    return MessageStart(begun)


def _usage(choice: OneChoice, num_output_tokens: int) -> MessagesUsage:
    return MessagesUsage(
        choice.num_prompt_tokens - choice.num_cached_tokens,
        num_output_tokens,
        ThinkingCount(choice.num_reasoning_tokens if num_output_tokens else 0),
        choice.num_cached_tokens,
    )


def _of_message(usage: MessagesUsage) -> MessagesUsage:
    return replace(usage, service_tier="standard")


def _stop(choice: OneChoice, num_tokens: int, call: Call, model: Model) -> Stop:
    """`num_tokens`: of the answer."""
    reasons: dict[str | None, StopReason] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    if choice.finish_reason == "stop" and isinstance(choice.stop_reason, str):
        return Stop("stop_sequence", choice.stop_reason)
    is_full = choice.num_prompt_tokens + num_tokens >= model.max_model_len
    if choice.finish_reason == "length" and is_full and num_tokens < (call.params.max_tokens or 0):
        return Stop("model_context_window_exceeded", None)
    return Stop(reasons[choice.finish_reason], None)
