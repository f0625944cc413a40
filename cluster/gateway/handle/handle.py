"""What other Ray jobs call, with plain dicts both ways: the caller needs no package of ours.

    handle = serve.get_app_handle("squadron")
    handle.generate.remote({"prompt": "2+2=", "max_tokens": 8}).result()
    handle.chat.remote({"messages": [{"role": "user", "content": "What is 2 + 2?"}]}).result()
    for delta in handle.options(stream=True).stream.remote({"prompt": "2+2=", "max_tokens": 8}): ...
    handle.abort.remote("the request_id that a request was given")

A request is a dict with the keys

    prompt        str, or a list of token ids; or else `messages`
    messages      as in the HTTP API, also `tools` and the other fields for the chat template
    model         str; refused if no model is served by that name; default: the first one
    request_id    str, the id by which `abort` knows the request; generated if absent
    priority      int, at least 0; lower values are served first if the engine's scheduling_policy
                  is "priority"
    cache_salt    str; requests share cached prefixes only with requests of the same salt
    timeout       seconds for the whole answer; then it ends with the error deadline_exceeded
    trace_headers {"traceparent": str, "tracestate": str}, of the caller's span (W3C trace context)

and any field of `engine.sampling_params.SamplingParams`: max_tokens, temperature, top_p, n, seed,
stop, ..., whose defaults are those of that class and not the model's. All are checked as the HTTP
API checks them. None means that a field is left out (except for `max_tokens`: the rest of the
context). Unknown fields are rejected.

An answer is a dict with the keys

    request_id        str
    prompt_token_ids  [int]; in a stream, only the first answer has them
    outputs           a list of n choices
    finished          bool: True in the last answer
    error             None, or {"message": str, "type": str, "param": str or None, "code": str}, as
                      in the HTTP API
    system_fingerprint  as in the HTTP API; None if the request reached no engine
    weights_version   str: of the weights that the engine was given last (`control`); None if it
                      has the model's own

A choice is a dict with the keys

    index             int, from 0 to n - 1
    text, token_ids   str, [int]: the whole choice from `generate` and `chat`; what is new since the
                      previous answer from `stream`. Tool calls and reasoning are in the text
    first_index       int: the number of token_ids before these
    finish_reason     None while the choice is running, then "stop", "length", "abort" or "error"
    stop_reason       the stop string or stop token id that ended it, or None
    logprobs          None, or for each token {token id: [logprob, rank, text]}

Leaving a stream does not end the request: cancel the response, or call `abort`, which ends a
request for anyone who knows its id. Only the process that built the application can drain gateways
and stop engines (`cluster/owner`).
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from cluster.api.models.model import Models
from cluster.gateway.handle.answer import answer, failed
from cluster.gateway.handle.read import read, request_id_of
from engine.admission.queue_limits import load_of
from engine.errors import InvalidRequest, SquadronError
from engine.outputs import Accumulator, RequestOutput


async def generate(models: Models, request: dict[str, Any]) -> dict[str, Any]:
    """The whole answer."""
    request_id = request_id_of(request)
    accumulator = Accumulator()
    try:
        async with aclosing(_deltas(models, request, request_id)) as deltas:
            async for delta in deltas:
                accumulator.add(delta)
    except SquadronError as error:
        return failed(request_id, error)
    assert accumulator.last is not None
    return answer(accumulator.last)


async def chat(models: Models, request: dict[str, Any]) -> dict[str, Any]:
    """As `generate`, of a request that has messages."""
    if isinstance(request, dict) and request.get("messages") is None:
        error = InvalidRequest("a chat request has messages", param="messages", code="missing_required_parameter")
        return failed(request_id_of(request), error)
    return await generate(models, request)


async def stream(models: Models, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """Deltas, one as soon as there are new tokens."""
    request_id = request_id_of(request)
    try:
        async with aclosing(_deltas(models, request, request_id, streams=True)) as deltas:
            is_first = True
            async for delta in deltas:
                yield answer(delta if is_first else replace(delta, prompt_token_ids=[]))
                is_first = False
    except SquadronError as error:
        yield failed(request_id, error)


def _deltas(
    models: Models, asked: dict[str, Any], request_id: str, *, streams: bool = False
) -> AsyncGenerator[RequestOutput, None]:
    """Raises InvalidRequest, ApiError or Overloaded at once."""
    (_, service, *_), request = read(asked, request_id, models, streams=streams)
    service.check_room(load_of(request), request.timeout)
    return service.generate(request)
