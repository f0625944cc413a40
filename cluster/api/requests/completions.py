"""From the body of POST /v1/completions to a `Call`."""

from dataclasses import replace
from typing import cast

from cluster.api.models.model import Model
from cluster.api.requests.call import Call, make_call
from cluster.api.requests.protocol import CompletionRequest
from cluster.api.requests.sampling import check_room, check_vocabulary, max_prompt_tokens, sampling_params
from engine.errors import InvalidRequest

DEFAULT_MAX_TOKENS = 16


def completion_call(request: CompletionRequest, model: Model) -> Call:
    """Raises InvalidRequest."""
    is_prompt_only = request.max_tokens == 0
    if is_prompt_only and not request.echo:
        message = "max_tokens=0 is for the prompt alone, which is shown with echo=true only; otherwise it is at least 1"
        raise InvalidRequest(message, param="max_tokens", code="integer_below_min_value")
    max_tokens = 1 if is_prompt_only else request.max_tokens
    kept = max_prompt_tokens(request.truncate_prompt_tokens, max_tokens or DEFAULT_MAX_TOKENS, model)
    prompts = _prompts(request)
    num_prompt_tokens = 1  # of a text, at least
    for index, prompt in enumerate(prompts):
        param = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
        if isinstance(prompt, str) and model.text_limit is not None:
            model.text_limit.check(prompt, param, is_cut=kept is not None)
        if isinstance(prompt, list):
            check_vocabulary(prompt, model.vocab_size, param=param)
            num_kept = min(len(prompt), kept or len(prompt))
            check_room(None, num_kept, model, param=param)
            num_prompt_tokens = max(num_prompt_tokens, num_kept)
    check_room(max_tokens, num_prompt_tokens, model, param="max_tokens")
    if request.stream and (request.best_of or 1) > 1:
        raise InvalidRequest("The best are known at the end only: best_of cannot be streamed", param="best_of")
    of_prompt = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        of_prompt = max(request.logprobs, of_prompt or 0)
    params = sampling_params(
        request,
        model,
        max_tokens=max_tokens or min(DEFAULT_MAX_TOKENS, model.max_model_len - num_prompt_tokens),
        best_of=request.best_of,
        logprobs=request.logprobs,
        prompt_logprobs=of_prompt,
    )
    adapter = model.adapter(request.model)
    call = make_call("cmpl", request, prompts, params, adapter, echo=bool(request.echo), max_prompt_tokens=kept)
    return replace(call, is_prompt_only=is_prompt_only)


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    prompts = request.prompt
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts[0], int):
        return [prompts]
    return cast(list[str | list[int]], prompts)
