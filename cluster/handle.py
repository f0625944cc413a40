"""What other Ray jobs call, with plain dicts both ways: the caller needs no package of ours.

    handle = serve.get_app_handle("squadron")
    handle.generate.remote({"prompt": "2+2=", "max_tokens": 8}).result()
    handle.chat.remote({"messages": [{"role": "user", "content": "What is 2 + 2?"}]}).result()
    for delta in handle.options(stream=True).stream.remote({"prompt": "2+2=", "max_tokens": 8}): ...
    handle.abort.remote("the request_id that a request was given")

A request is a dict of

    prompt        str, or a list of token ids; or else
    messages      a list of {"role": str, "content": str}
    request_id    str, by which `abort` knows the request; made up when absent
    priority      int, lower is served first where the engine's scheduling_policy is "priority"
    cache_salt    str; prefixes are shared in the cache only among requests of the same salt
    and any field of `engine.sampling_params.SamplingParams`: max_tokens, temperature, top_p, n, seed, stop, ...

An answer is a dict of

    request_id        str
    prompt_token_ids  [int]
    outputs           a list of choices, n of them
    finished          bool: nothing follows
    error             None, or {"message": str, "type": str, "param": str or None, "code": str}, as the HTTP API has it

A choice is a dict of

    index             int, which of the n
    text, token_ids   str, [int]: all of them from `generate` and `chat`; from `stream` those since the answer before
    first_index       int: how many token_ids came before these
    finish_reason     None while it goes on, then "stop", "length", "abort" or "error"
    stop_reason       the stop string or stop token id that ended it, or None
    logprobs          None, or for each token {token id: [logprob, rank, text]}

Leaving a stream does not end it: cancel the response, or call `abort`.
"""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from cluster.api.errors import as_api_error
from cluster.api.service import ChatPrompt, Prompt
from cluster.gateway import Gateway
from engine.errors import InvalidRequest, SquadronError
from engine.outputs import Accumulator, CompletionOutput, PositionLogprobs, RequestOutput
from engine.sampling_params import SamplingParams

_OWN_FIELDS = ("prompt", "messages", "request_id", "priority", "cache_salt")
_SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams))


async def generate(gateway: Gateway, request: dict[str, Any]) -> dict[str, Any]:
    """The whole answer."""
    request_id = _request_id(request)
    accumulator = Accumulator()
    try:
        async with aclosing(_deltas(gateway, request_id, request)) as deltas:
            async for delta in deltas:
                accumulator.add(delta)
    except SquadronError as error:
        return _failed(request_id, error)
    assert accumulator.last is not None
    return _answer(accumulator.last)


async def chat(gateway: Gateway, request: dict[str, Any]) -> dict[str, Any]:
    """As `generate`, of a request that has messages."""
    if isinstance(request, dict) and "messages" not in request:
        error = InvalidRequest("a chat request has messages", param="messages", code="missing_required_parameter")
        return _failed(_request_id(request), error)
    return await generate(gateway, request)


async def stream(gateway: Gateway, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """What is new, each time something is."""
    request_id = _request_id(request)
    try:
        async with aclosing(_deltas(gateway, request_id, request)) as deltas:
            async for delta in deltas:
                yield _answer(delta)
    except SquadronError as error:
        yield _failed(request_id, error)


async def _deltas(gateway: Gateway, request_id: str, request: dict[str, Any]) -> AsyncGenerator[RequestOutput, None]:
    """The request's deltas; raises what `Gateway.generate` does."""
    _check_fields(request)
    params = SamplingParams(**{name: value for name, value in request.items() if name in _SAMPLING_FIELDS})
    deltas = gateway.generate(
        request_id,
        _prompt(request),
        params,
        priority=request.get("priority") or 0,
        cache_salt=request.get("cache_salt"),
    )
    async with aclosing(deltas):
        async for delta in deltas:
            yield delta


def _request_id(request: Any) -> str:
    given = request.get("request_id") if isinstance(request, dict) else None
    return given if isinstance(given, str) else f"handle-{uuid.uuid4().hex}"


def _check_fields(request: Any) -> None:
    if not isinstance(request, dict):
        raise InvalidRequest(f"a request is a dict, got {type(request).__name__}", code="invalid_type")
    for name in request:
        if name not in _OWN_FIELDS + _SAMPLING_FIELDS:
            near = get_close_matches(str(name), _OWN_FIELDS + _SAMPLING_FIELDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidRequest(f"unknown field {name!r}{hint}", param=str(name), code="unknown_parameter")
    for name, kind in (("request_id", str), ("cache_salt", str), ("priority", int)):
        value = request.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InvalidRequest(f"{name} must be {kind.__name__}, got {value!r}", param=name, code="invalid_type")


def _prompt(request: dict[str, Any]) -> Prompt:
    if ("prompt" in request) == ("messages" in request):
        raise InvalidRequest(
            "a request has either prompt or messages", param="prompt", code="missing_required_parameter"
        )
    if "prompt" in request:
        return _checked_prompt(request["prompt"])
    return _checked_messages(request["messages"])


def _checked_prompt(prompt: Any) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token_id) is int for token_id in prompt):
        return prompt
    raise InvalidRequest("prompt must be a str or a list of token ids", param="prompt", code="invalid_type")


def _checked_messages(messages: Any) -> ChatPrompt:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a list that is not empty", param="messages", code="invalid_type")
    for index, message in enumerate(messages):
        for name in ("role", "content"):
            if not isinstance(message, dict) or not isinstance(message.get(name), str):
                raise InvalidRequest(
                    f"message {index} has no {name}", param=f"messages[{index}].{name}", code="invalid_type"
                )
    return ChatPrompt(messages)


def _answer(output: RequestOutput) -> dict[str, Any]:
    error = None
    if output.error is not None:
        error = {
            "message": output.error,
            "type": "server_error",
            "param": None,
            "code": output.error_code or "request_failed",
        }
    return {
        "request_id": output.request_id,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [_choice(choice) for choice in output.outputs],
        "finished": output.finished,
        "error": error,
    }


def _choice(choice: CompletionOutput) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "first_index": choice.first_index,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "logprobs": None if choice.logprobs is None else [_logprobs(position) for position in choice.logprobs],
    }


def _logprobs(position: PositionLogprobs) -> dict[int, list[Any]]:
    return {token_id: [token.logprob, token.rank, token.decoded_token] for token_id, token in position.items()}


def _failed(request_id: str, error: SquadronError) -> dict[str, Any]:
    told = as_api_error(error)
    body = {"message": told.message, "type": told.type, "param": told.param, "code": told.code}
    return {"request_id": request_id, "prompt_token_ids": [], "outputs": [], "finished": True, "error": body}
