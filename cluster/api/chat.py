"""POST /v1/chat/completions: from its request to a `Call`, and from the deltas to its answer, whole
or in events.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UNSET, UnsetType

from cluster.api.generation import Call, Joined, Tally, Update, finish_reason
from cluster.api.logprobs import chat_logprobs, prompt_logprobs
from cluster.api.protocol import ChatRequest, Message
from cluster.api.responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
)
from cluster.api.sampling import Model, check_room, sampling_params
from cluster.api.service import ChatPrompt
from cluster.api.stream import DONE, event
from engine.errors import InvalidRequest
from engine.outputs import CompletionOutput


def chat_call(request: ChatRequest, model: Model) -> Call:
    """Raises InvalidRequest."""
    max_tokens = _max_tokens(request)
    # No message is less than a token.
    check_room(None, len(request.messages), model, param="messages")
    limit_name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    check_room(max_tokens, len(request.messages), model, param=limit_name)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs is for logprobs: set logprobs to true", param="top_logprobs")
    return Call(
        kind="chatcmpl",
        prompts=[chat_prompt(request.messages)],
        params=sampling_params(
            request,
            model,
            max_tokens=max_tokens,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            prompt_logprobs=request.prompt_logprobs,
        ),
        stream=bool(request.stream),
        include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
        prompt_logprobs=request.prompt_logprobs is not None,
    )


async def chat_result(call: Call, model: Model, updates: AsyncGenerator[Update, None]) -> bytes:
    """The whole answer as JSON; raises ApiError."""
    tally, joined = Tally(call), Joined()
    async with aclosing(updates):
        async for update in updates:
            tally.add(update)
            joined.add(update)
    usage = tally.close()
    choices = [
        ChatChoice(
            choice.index,
            ChatMessage(choice.text),
            _logprobs(call, choice),
            finish_reason(choice),
            choice.stop_reason,
        )
        for _, choice in joined.choices()
    ]
    of_prompt = joined.first[0].prompt_logprobs if call.prompt_logprobs else None
    shown = UNSET if of_prompt is None else prompt_logprobs(of_prompt)
    answer = ChatCompletion(call.id, call.created, model.name, choices, usage, shown, call.warnings, tally.fingerprint)
    return msgspec.json.encode(answer)


async def chat_events(call: Call, model: Model, updates: AsyncGenerator[Update, None]) -> AsyncGenerator[bytes, None]:
    """The answer's events, one or more a delta; raises ApiError."""
    tally = Tally(call)
    usage = None if call.include_usage else UNSET
    begun: set[int] = set()

    def chunk(choice: ChatChunkChoice, warnings: list[str] | UnsetType = UNSET) -> bytes:
        return event(
            ChatCompletionChunk(call.id, call.created, model.name, [choice], usage, warnings, tally.fingerprint)
        )

    async with aclosing(updates):
        async for update in updates:
            tally.add(update)
            is_end = tally.is_whole and not call.include_usage
            events = []
            for number, delta in enumerate(update.output.outputs, 1):
                if delta.index not in begun:
                    begun.add(delta.index)
                    events.append(chunk(ChatChunkChoice(delta.index, ChatDelta("assistant", ""))))
                logprobs = _logprobs(call, delta)
                if delta.text or logprobs is not None:
                    events.append(chunk(ChatChunkChoice(delta.index, ChatDelta(content=delta.text), logprobs)))
                if delta.finished:
                    last = ChatChunkChoice(delta.index, ChatDelta(), None, finish_reason(delta), delta.stop_reason)
                    is_last = is_end and number == len(update.output.outputs)
                    events.append(chunk(last, call.warnings if is_last else UNSET))
            if events:
                yield b"".join(events)
    total = tally.close()
    if call.include_usage:
        yield event(ChatCompletionChunk(call.id, call.created, model.name, [], total, call.warnings, tally.fingerprint))
    yield DONE


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"max_tokens={old} and max_completion_tokens={new} are two names of one limit",
            param="max_completion_tokens",
        )
    return old if new is None else new


def chat_prompt(messages: list[Message]) -> ChatPrompt:
    """A conversation as the template takes it."""
    return ChatPrompt([_message(message) for message in messages])


def _message(message: Message) -> dict[str, str]:
    """The parts of a content on lines of their own, a developer as the system."""
    content = message.content if isinstance(message.content, str) else "\n".join(part.text for part in message.content)
    return {"role": "system" if message.role == "developer" else message.role, "content": content}


def _logprobs(call: Call, choice: CompletionOutput) -> ChatLogprobs | None:
    if call.params.logprobs is None:
        return None
    return chat_logprobs(choice.token_ids, choice.logprobs or [], call.params.logprobs)
