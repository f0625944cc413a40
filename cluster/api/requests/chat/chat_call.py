"""From the body of POST /v1/chat/completions to a `Call`."""

from cluster.api.answers.form import Form
from cluster.api.model import Model
from cluster.api.requests.call import Call, make_call
from cluster.api.requests.chat.conversation import conversation
from cluster.api.requests.chat.forced import forced_calls
from cluster.api.requests.protocol import ChatRequest
from cluster.api.requests.sampling import check_room, sampling_params
from engine.errors import InvalidRequest
from engine.request import ChatPrompt


def chat_call(request: ChatRequest, model: Model) -> Call:
    """Raises InvalidRequest."""
    max_tokens = _max_tokens(request)
    # A message is at least one token.
    check_room(None, len(request.messages), model, param="messages")
    limit_name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    check_room(max_tokens, len(request.messages), model, param=limit_name)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs is for logprobs: set logprobs to true", param="top_logprobs")
    params = sampling_params(
        request,
        model,
        max_tokens=max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
        **forced_calls(request, model),
    )
    prompt = conversation(request, model, reasons=params.structured_outputs is None)
    form = _form(request, prompt, model, reasons=params.structured_outputs is None)
    return make_call("chatcmpl", request, [prompt], params, form=form)


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"max_tokens={old} and max_completion_tokens={new} are two names of one limit",
            param="max_completion_tokens",
        )
    return old if new is None else new


def _form(request: ChatRequest, prompt: ChatPrompt, model: Model, *, reasons: bool) -> Form:
    return Form(
        tool_format=None if prompt.tools is None else model.tool_format,
        tools=prompt.tools or (),
        is_parallel=request.parallel_tool_calls is not False,
        reasoning_ids=model.reasoning_ids if reasons and request.separate_reasoning is not False else None,
        shows_reasoning=request.include_reasoning is not False,
    )
