"""From a dict to a `Request`, checked as the HTTP API checks its fields."""

import uuid
from typing import Any

from cluster.api.models.model import Model, Models, ServedModel
from cluster.api.requests.call import make_request, trace_context
from cluster.api.requests.chat.conversation import conversation
from cluster.api.requests.chat.forced import forced_calls
from cluster.api.requests.protocol import HandleRequest
from cluster.api.requests.sampling import find_model, given, max_prompt_tokens
from cluster.api.requests.validate import ignored_fields, refuse_ignored, validate
from engine.errors import InvalidRequest
from engine.request import Prompt, Request
from engine.sampling_params import SamplingParams


def request_id_of(request: Any) -> str:
    """The caller's request id, whatever else is wrong with the request."""
    given = request.get("request_id") if isinstance(request, dict) else None
    return given if isinstance(given, str) else f"handle-{uuid.uuid4().hex}"


def read(request: Any, request_id: str, models: Models, *, streams: bool) -> tuple[ServedModel, Request]:
    """The model that is to answer, and what it is asked. `streams`: the caller's method does.

    Raises InvalidRequest, ApiError.
    """
    if not isinstance(request, dict):
        raise InvalidRequest(f"a request is a dict, got {type(request).__name__}", code="invalid_type")
    fields = {name: _as_json(value) for name, value in request.items()}
    asked = validate(HandleRequest, fields)
    refuse_ignored(ignored_fields(asked))
    model = find_model(fields, models)
    params: dict[str, Any] = given(asked, model) | forced_calls(asked, model)
    if asked.stream is not None and asked.stream != streams:
        name = "generate or chat" if streams else "stream"
        raise InvalidRequest(f"stream={asked.stream} is for the method {name}", param="stream")
    params |= {name: getattr(asked, name) for name in ("best_of", "logprobs")}
    if "max_tokens" in request:
        params["max_tokens"] = asked.max_tokens
    sampling = SamplingParams(**params)
    kept = max_prompt_tokens(asked.truncate_prompt_tokens, sampling.max_tokens, model)
    prompt = _prompt(asked, model, reasons=sampling.structured_outputs is None)
    adapter, headers = model.adapter(asked.model), trace_context(asked.trace_headers)
    return models[model.name], make_request(asked, request_id, prompt, sampling, adapter, kept, headers)


def _as_json(value: Any) -> Any:
    """Converts values that JSON does not have (tuples, numbers as keys) to the form in which the
    HTTP API would get them.
    """
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {str(key) if type(key) is int else key: item for key, item in value.items()}
    return value


def _prompt(asked: HandleRequest, model: Model, *, reasons: bool) -> Prompt:
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequest(
            "a request has either prompt or messages", param="prompt", code="missing_required_parameter"
        )
    if asked.prompt is not None:
        return asked.prompt
    assert asked.messages is not None
    return conversation(asked, asked.messages, model, reasons=reasons)
