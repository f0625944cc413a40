"""From the body of POST /v1/chat/completions to a `Call`."""

from cluster.api.answers.form import Form
from cluster.api.models.model import Model
from cluster.api.requests.call import Call, make_call
from cluster.api.requests.chat.conversation import conversation, text_of
from cluster.api.requests.chat.forced import forced_calls
from cluster.api.requests.protocol import ChatRequest
from cluster.api.requests.sampling import check_room, max_prompt_tokens, sampling_params
from engine.errors import InvalidRequest
from engine.request import ChatPrompt


def chat_call(request: ChatRequest, model: Model, *, ends_with_context: bool = False) -> Call:
    """`ends_with_context`: as in `Request`. Raises InvalidRequest."""
    max_tokens = _max_tokens(request)
    needed = None if ends_with_context else max_tokens
    limit_name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    check_room(needed, 1, model, param=limit_name)
    kept = max_prompt_tokens(request.truncate_prompt_tokens, max_tokens, model)
    num_prompt_tokens = min(len(request.messages), kept or len(request.messages))  # a message is at least one
    check_room(None, num_prompt_tokens, model, param="messages")
    check_room(needed, num_prompt_tokens, model, param=limit_name)
    if request.top_logprobs and not request.logprobs:  # 0, which some send always, asks for nothing
        raise InvalidRequest("top_logprobs is for logprobs: set logprobs to true", param="top_logprobs")
    params = sampling_params(
        request,
        model,
        max_tokens=max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
        **forced_calls(request, model),
    )
    prompt = conversation(request, request.messages, model, reasons=params.structured_outputs is None)
    form = _form(request, prompt, model, reasons=params.structured_outputs is None)
    adapter = model.adapter(request.model)
    call = make_call(
        "chatcmpl", request, [prompt], params, adapter, echoed=_echoed(request), form=form, max_prompt_tokens=kept
    )
    return call.ending_with_context() if ends_with_context else call


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"max_tokens={old} and max_completion_tokens={new} are two names of one limit",
            param="max_completion_tokens",
        )
    return old if new is None else new


def _echoed(request: ChatRequest) -> str:
    """The last message, which the answer is to repeat if both have the same author."""
    last = request.messages[-1]
    return text_of(last) if request.echo and last.role == "assistant" else ""


def _form(request: ChatRequest, prompt: ChatPrompt, model: Model, *, reasons: bool) -> Form:
    return Form(
        tool_format=None if prompt.tools is None else model.tool_format,
        tools=prompt.tools or (),
        is_parallel=request.parallel_tool_calls is not False,
        reasoning_ids=model.reasoning_ids if reasons and request.separate_reasoning is not False else None,
        shows_reasoning=request.include_reasoning is not False,
    )
