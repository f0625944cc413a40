"""POST /v1/completions: from its request to a `Call`, and from the deltas to its answer, whole or
in events.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import msgspec
from msgspec import UNSET

from cluster.api.generation import Call, Joined, Tally, Update, finish_reason
from cluster.api.logprobs import Offsets, completion_logprobs, echoed_logprobs, prompt_logprobs
from cluster.api.protocol import CompletionRequest
from cluster.api.responses import Completion, CompletionChoice, CompletionLogprobs
from cluster.api.sampling import Model, check_room, check_vocabulary, sampling_params
from cluster.api.stream import DONE, event
from engine.errors import InvalidRequest
from engine.outputs import CompletionOutput, RequestOutput

DEFAULT_MAX_TOKENS = 16


def completion_call(request: CompletionRequest, model: Model) -> Call:
    """Raises InvalidRequest."""
    prompts = _prompts(request)
    num_prompt_tokens = 1  # of a text, at least
    for index, prompt in enumerate(prompts):
        param = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
        if isinstance(prompt, str) and model.text_limit is not None:
            model.text_limit.check(prompt, param)
        if isinstance(prompt, list):
            check_vocabulary(prompt, model.vocab_size, param=param)
            check_room(None, len(prompt), model, param=param)
            num_prompt_tokens = max(num_prompt_tokens, len(prompt))
    check_room(request.max_tokens, num_prompt_tokens, model, param="max_tokens")
    if request.stream and (request.best_of or 1) > 1:
        raise InvalidRequest("The best are known at the end only: best_of cannot be streamed", param="best_of")
    of_prompt = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        of_prompt = max(request.logprobs, of_prompt or 0)
    return Call(
        kind="cmpl",
        prompts=prompts,
        params=sampling_params(
            request,
            model,
            max_tokens=request.max_tokens or min(DEFAULT_MAX_TOKENS, model.max_model_len - num_prompt_tokens),
            best_of=request.best_of,
            logprobs=request.logprobs,
            prompt_logprobs=of_prompt,
        ),
        stream=bool(request.stream),
        include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
        echo=bool(request.echo),
        prompt_logprobs=request.prompt_logprobs is not None,
    )


async def completion_result(call: Call, model: Model, updates: AsyncGenerator[Update, None]) -> bytes:
    """The whole answer as JSON; raises ApiError, InvalidRequest."""
    tally, joined = Tally(call), Joined()
    async with aclosing(updates):
        async for update in updates:
            tally.add(update)
            joined.add(update)
    usage = tally.close()
    choices = []
    for index, choice in joined.choices():
        first = joined.first[index]
        shown = _choice(call, index, choice, _offsets(call, model), echoed=first if call.echo else None)
        if call.prompt_logprobs and first.prompt_logprobs is not None:
            shown = msgspec.structs.replace(shown, prompt_logprobs=prompt_logprobs(first.prompt_logprobs))
        choices.append(shown)
    return msgspec.json.encode(
        Completion(call.id, call.created, model.name, choices, usage, call.warnings, tally.fingerprint)
    )


async def completion_events(
    call: Call, model: Model, updates: AsyncGenerator[Update, None]
) -> AsyncGenerator[bytes, None]:
    """The answer's events, at most one a delta; raises ApiError, InvalidRequest."""
    tally = Tally(call)
    usage = None if call.include_usage else UNSET
    first: dict[int, RequestOutput] = {}
    offsets: dict[int, Offsets] = {}  # of each choice
    async with aclosing(updates):
        async for update in updates:
            tally.add(update)
            index = update.prompt_index
            first.setdefault(index, update.output)
            is_end = tally.is_whole and not call.include_usage
            events = []
            for position, delta in enumerate(update.output.outputs, 1):
                number = index * call.params.n + delta.index
                echoed = first[index] if call.echo and number not in offsets else None
                offsets.setdefault(number, _offsets(call, model))
                choice = _choice(call, index, delta, offsets[number], echoed=echoed)
                if choice.text or choice.logprobs is not None or choice.finish_reason is not None:
                    told = call.warnings if is_end and position == len(update.output.outputs) else UNSET
                    events.append(
                        event(Completion(call.id, call.created, model.name, [choice], usage, told, tally.fingerprint))
                    )
            if events:
                yield b"".join(events)
    total = tally.close()
    if call.include_usage:
        yield event(Completion(call.id, call.created, model.name, [], total, call.warnings, tally.fingerprint))
    yield DONE


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    prompts = request.prompt
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts[0], int):
        return [prompts]
    return cast(list[str | list[int]], prompts)


def _offsets(call: Call, model: Model) -> Offsets:
    return Offsets(model.special_ids if call.params.skip_special_tokens else frozenset())


def _choice(
    call: Call, prompt_index: int, choice: CompletionOutput, offsets: Offsets, *, echoed: RequestOutput | None
) -> CompletionChoice:
    """A delta or a whole choice; after the prompt, where `echoed` brings that."""
    return CompletionChoice(
        prompt_index * call.params.n + choice.index,
        choice.text if echoed is None else _prompt_text(echoed) + choice.text,
        _logprobs(call, choice, offsets, echoed),
        finish_reason(choice),
        choice.stop_reason,
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
        return completion_logprobs(choice.token_ids, choice.logprobs or [], count, offsets)
    assert echoed.prompt_logprobs is not None, "the first delta has none, though they were asked for"
    prompt = echoed_logprobs(
        echoed.prompt_token_ids, echoed.prompt_logprobs, count, offsets, prompt=_prompt_text(echoed)
    )
    own = completion_logprobs(choice.token_ids, choice.logprobs or [], count, offsets)
    return CompletionLogprobs(
        prompt.tokens + own.tokens,
        prompt.token_logprobs + own.token_logprobs,
        prompt.top_logprobs + own.top_logprobs,
        prompt.text_offset + own.text_offset,
    )
