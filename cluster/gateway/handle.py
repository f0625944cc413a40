"""What other Ray jobs call, with plain dicts both ways: the caller needs no package of ours.

    handle = serve.get_app_handle("squadron")
    handle.generate.remote({"prompt": "2+2=", "max_tokens": 8}).result()
    handle.chat.remote({"messages": [{"role": "user", "content": "What is 2 + 2?"}]}).result()
    for delta in handle.options(stream=True).stream.remote({"prompt": "2+2=", "max_tokens": 8}): ...
    handle.abort.remote("the request_id that a request was given")

A request is a dict with the keys

    prompt        str, or a list of token ids; or else `messages`
    messages      a list of {"role": str, "content": str}, with the roles and parts that the HTTP
                  API takes
    request_id    str, the id by which `abort` knows the request; generated if absent
    priority      int, at least 0; lower values are served first if the engine's scheduling_policy
                  is "priority"
    cache_salt    str; requests share cached prefixes only with requests of the same salt
    timeout       seconds for the whole answer; then it ends with the error deadline_exceeded
    trace_headers {"traceparent": str, "tracestate": str}, of the caller's span (W3C trace context)

and any field of `engine.sampling_params.SamplingParams`: max_tokens, temperature, top_p, n, seed,
stop, ... All are checked as the HTTP API checks them. None means that a field is left
out (except for `max_tokens`: the rest of the context). Unknown fields are rejected.

An answer is a dict with the keys

    request_id        str
    prompt_token_ids  [int]; in a stream, only the first answer has them
    outputs           a list of n choices
    finished          bool: True in the last answer
    error             None, or {"message": str, "type": str, "param": str or None, "code": str}, as
                      in the HTTP API
    system_fingerprint  as in the HTTP API; None if the request reached no engine

A choice is a dict with the keys

    index             int, from 0 to n - 1
    text, token_ids   str, [int]: the whole choice from `generate` and `chat`; what is new since the
                      previous answer from `stream`
    first_index       int: the number of token_ids before these
    finish_reason     None while the choice is running, then "stop", "length", "abort" or "error"
    stop_reason       the stop string or stop token id that ended it, or None
    logprobs          None, or for each token {token id: [logprob, rank, text]}

Leaving a stream does not end the request: cancel the response, or call `abort`, which ends a
request for anyone who knows its id. Only the process that built the application can drain gateways
and stop engines (`cluster/owner`).
"""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from cluster.api.errors import as_api_error
from cluster.api.requests.call import make_request, trace_context
from cluster.api.requests.chat import chat_prompt
from cluster.api.requests.protocol import HandleRequest
from cluster.api.requests.sampling import given
from cluster.api.requests.validate import refuse_unknown, unknown_fields, validate
from cluster.gateway.gateway import Gateway
from engine.admission.queue_limits import Load
from engine.errors import InvalidRequest, SquadronError
from engine.outputs import Accumulator, CompletionOutput, PositionLogprobs, RequestOutput
from engine.request import Prompt, Request, estimated_tokens
from engine.sampling_params import SamplingParams


async def generate(gateway: Gateway, request: dict[str, Any]) -> dict[str, Any]:
    """The whole answer."""
    request_id = _request_id(request)
    accumulator = Accumulator()
    try:
        async with aclosing(_deltas(gateway, request, request_id)) as deltas:
            async for delta in deltas:
                accumulator.add(delta)
    except SquadronError as error:
        return _failed(request_id, error)
    assert accumulator.last is not None
    return _answer(accumulator.last)


async def chat(gateway: Gateway, request: dict[str, Any]) -> dict[str, Any]:
    """As `generate`, of a request that has messages."""
    if isinstance(request, dict) and request.get("messages") is None:
        error = InvalidRequest("a chat request has messages", param="messages", code="missing_required_parameter")
        return _failed(_request_id(request), error)
    return await generate(gateway, request)


async def stream(gateway: Gateway, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """What is new, each time something is."""
    request_id = _request_id(request)
    try:
        async with aclosing(_deltas(gateway, request, request_id)) as deltas:
            is_first = True
            async for delta in deltas:
                yield _answer(delta if is_first else replace(delta, prompt_token_ids=[]))
                is_first = False
    except SquadronError as error:
        yield _failed(request_id, error)


def _deltas(gateway: Gateway, asked: dict[str, Any], request_id: str) -> AsyncGenerator[RequestOutput, None]:
    """Raises InvalidRequest or Overloaded at once."""
    request = _read(asked, request_id)
    gateway.check_room(Load(1, estimated_tokens(request.prompt)), request.timeout)
    return gateway.generate(request)


def _request_id(request: Any) -> str:
    given = request.get("request_id") if isinstance(request, dict) else None
    return given if isinstance(given, str) else f"handle-{uuid.uuid4().hex}"


def _read(request: Any, request_id: str) -> Request:
    """Raises InvalidRequest."""
    if not isinstance(request, dict):
        raise InvalidRequest(f"a request is a dict, got {type(request).__name__}", code="invalid_type")
    asked = validate(HandleRequest, {name: _as_json(value) for name, value in request.items()})
    refuse_unknown(unknown_fields(asked))
    params: dict[str, Any] = given(asked)
    params |= {name: getattr(asked, name) for name in ("best_of", "logprobs")}
    if "max_tokens" in request:
        params["max_tokens"] = asked.max_tokens
    made = make_request(asked, request_id, _prompt(asked), SamplingParams(**params))
    return replace(made, trace_headers=trace_context(asked.trace_headers))


def _as_json(value: Any) -> Any:
    """A value that JSON cannot hold as the HTTP API would be sent it: a tuple, an object with
    numbers as keys.
    """
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {str(key) if type(key) is int else key: item for key, item in value.items()}
    return value


def _prompt(asked: HandleRequest) -> Prompt:
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequest(
            "a request has either prompt or messages", param="prompt", code="missing_required_parameter"
        )
    if asked.prompt is not None:
        return asked.prompt
    assert asked.messages is not None
    return chat_prompt(asked.messages)


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
        "system_fingerprint": output.fingerprint,
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
    return {
        "request_id": request_id,
        "prompt_token_ids": [],
        "outputs": [],
        "finished": True,
        "error": body,
        "system_fingerprint": None,
    }
