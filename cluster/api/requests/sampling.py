"""The checks of a request that depend on the model: which one it is, and `SamplingParams` by its
defaults, vocabulary and context.
"""

from dataclasses import fields
from typing import Any, TypeGuard

from cluster.api.errors import ApiError
from cluster.api.models.model import Model, Models
from cluster.api.requests.fields import MAX_INPUTS, MAX_PROMPTS, as_brief_json
from cluster.api.requests.form import wanted_form
from cluster.api.requests.protocol import GenerationRequest, SamplingFields
from engine.errors import InvalidRequest, context_exceeded
from engine.sampling_params import SamplingParams

MAX_NAMES = 16  # of models that an error tells: adapters may be thousands

_SAME_NAME = [
    field.name
    for field in fields(SamplingParams)
    if field.name in SamplingFields.model_fields and field.name != "structured_outputs"
]


def find_model(fields: dict[str, Any], models: Models) -> Model:
    """For a request with these fields, which need not be valid. Raises ApiError if it names a model
    that is not served.
    """
    model = models.find(fields)
    if model is None:
        raise unknown_model(fields["model"], models)
    return model


def unknown_model(name: str, models: Models) -> ApiError:
    """For a name that no model has."""
    names = [*models.names()]
    first, *others = map(as_brief_json, names[:MAX_NAMES])
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    there = f"there are {', '.join([first, *others])}{more}" if others else f"{first} is"
    message = f"There is no model {as_brief_json(name)} here; {there}"
    return ApiError(404, message, code="model_not_found", param="model")


def sampling_params(request: GenerationRequest, model: Model, **own: Any) -> SamplingParams:
    """The request's parameters, with those in `own` set by the route; raises InvalidRequest."""
    values = given(request, model)
    defaults = {} if "beam_width" in values else model.default_sampling  # beams are not sampled
    return SamplingParams(**{**defaults, **values, **own})


def given(request: GenerationRequest, model: Model) -> dict[str, Any]:
    """The fields that are not left out, as `SamplingParams` takes them; raises InvalidRequest."""
    check_generates(model)
    _check_stream(request)
    _check_token_ids(request, model.vocab_size)
    values = {name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None}
    if request.logit_bias is not None:
        values["logit_bias"] = {int(token_id): bias for token_id, bias in request.logit_bias.items()}
    if (form := wanted_form(request)) is not None:
        values["structured_outputs"] = form
    if request.use_beam_search:
        values.setdefault("beam_width", request.n or 1)
    elif request.use_beam_search is False and request.beam_width is not None:
        raise InvalidRequest("beam_width is set, and use_beam_search is false", param="beam_width")
    return values


def check_generates(model: Model) -> None:
    """Raises InvalidRequest if the model is there for embeddings only."""
    if model.embedding.is_all:
        message = f"{model.name} generates no text: it makes embeddings, at /v1/embeddings, as its modules.json says"
        raise InvalidRequest(message, param="model", code="unsupported_value")


def check_counts(body: dict[str, Any], model: Model) -> None:
    """Reject more token ids than any request may have before they are checked: a million would hold
    the interpreter lock for a tenth of a second. Raises InvalidRequest.

    Where the prompt is truncated, the ids that would be dropped at any rate are dropped here.
    """
    prompt, keeps = body.get("prompt"), body.get("truncate_prompt_tokens") is not None
    prompts = prompt[:MAX_PROMPTS] if isinstance(prompt, list) else []
    where = [(None, prompt)] if _are_ids(prompt) else [(index, each) for index, each in enumerate(prompts)]
    for index, each in where:
        if _are_ids(each) and keeps:
            del each[: -model.max_model_len]
        elif _are_ids(each):
            check_room(None, len(each), model, param="prompt" if index is None else f"prompt[{index}]")
    inputs = body.get("input")
    for each in [inputs] if _are_ids(inputs) else inputs[:MAX_INPUTS] if isinstance(inputs, list) else []:
        if _are_ids(each):  # one too many is enough to be refused later
            del each[: -model.max_model_len - (not keeps)]
    for name in ("stop_token_ids", "allowed_token_ids"):
        if _are_ids(token_ids := body.get(name)):
            _check_count(token_ids, model.vocab_size, param=name)


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    """Judged by the first item."""
    return isinstance(value, list) and bool(value) and type(value[0]) is int


def check_room(max_tokens: int | None, num_prompt_tokens: int, model: Model, *, param: str) -> None:
    """Reject a request that cannot fit into the context; the engine counts a text's tokens."""
    if num_prompt_tokens + (max_tokens or 1) > model.max_model_len:
        however = f"you requested at least {num_prompt_tokens} in the prompt and {max_tokens or 1} to generate"
        if num_prompt_tokens >= model.max_model_len:
            however += ": the prompt is too long"
        raise context_exceeded(model.max_model_len, however, param=param)


def max_prompt_tokens(asked: int | None, max_tokens: int | None, model: Model) -> int | None:
    """How many tokens of a prompt are kept, if `truncate_prompt_tokens` says so; -1 stands for what
    fits beside the answer's `max_tokens` (or one). Raises InvalidRequest.
    """
    room = max(model.max_model_len - (max_tokens or 1), 1)
    if asked is not None and asked > room:
        raise InvalidRequest(
            f"truncate_prompt_tokens={asked} exceeds {room}, which fit into the context of {model.max_model_len} "
            f"tokens beside {max_tokens or 1} of output",
            param="truncate_prompt_tokens",
            code="context_length_exceeded",
        )
    return room if asked == -1 else asked


def check_length(num_tokens: int, model: Model, *, param: str) -> None:
    """As `check_room`, of a request that generates nothing."""
    if num_tokens > model.max_model_len:
        however = f"the prompt is too long: it has {num_tokens} tokens"
        raise context_exceeded(model.max_model_len, however, param=param)


def _check_stream(request: GenerationRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options is for streams: set stream to true", param="stream_options")
    if not request.stream:
        return
    options = request.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        param = "stream_options.continuous_usage_stats"
        raise InvalidRequest("continuous_usage_stats is for include_usage: set that to true, too", param=param)
    if request.beam_width is not None or request.use_beam_search:
        raise InvalidRequest("The beams are known at the end only: they cannot be streamed", param="stream")
    if request.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs cannot be streamed", param="stream")


def _check_token_ids(request: GenerationRequest, vocab_size: int) -> None:
    logit_bias = [int(token_id) for token_id in request.logit_bias or ()]
    fields = {
        "logit_bias": logit_bias,
        "stop_token_ids": request.stop_token_ids,
        "allowed_token_ids": request.allowed_token_ids,
    }
    for name, token_ids in fields.items():
        _check_count(token_ids or [], vocab_size, param=name)
        check_vocabulary(token_ids or [], vocab_size, param=name)


def _check_count(token_ids: list[Any], vocab_size: int, *, param: str) -> None:
    if len(token_ids) > vocab_size:
        message = f"{param} has {len(token_ids)} token ids, more than the vocabulary's {vocab_size}"
        raise InvalidRequest(message, param=param, code="array_above_max_length")


def check_vocabulary(token_ids: list[int], vocab_size: int, *, param: str) -> None:
    """Reject ids that the model does not have."""
    if token_ids and max(token_ids) >= vocab_size:
        raise InvalidRequest(
            f"{param} holds token id {max(token_ids)}; the vocabulary ends at {vocab_size - 1}", param=param
        )
