"""The common part of calls that are answered with numbers."""

import uuid
from collections.abc import Mapping

from cluster.api.answers.form import Wanted
from cluster.api.models.model import Model
from cluster.api.requests.call import Call
from cluster.api.requests.pooled.protocol import PooledRequest
from cluster.api.requests.sampling import check_length, check_vocabulary
from engine.pooling import NO_TOKENS, Pooling
from engine.request import Request


def pooled_call(
    kind: str,
    asked: PooledRequest,
    prompts: Mapping[str, str | list[int]],
    model: Model,
    pooling: Pooling,
    wanted: Wanted,
    *,
    max_prompt_tokens: int | None = None,
    add_special_tokens: bool | None = None,
) -> Call:
    """A request for each of `prompts`, which are named as the caller's errors name them. Raises
    InvalidRequest.
    """
    for param, prompt in prompts.items():
        if isinstance(prompt, list):
            check_vocabulary(prompt, model.vocab_size, param=param)
            check_length(min(len(prompt), max_prompt_tokens or len(prompt)), model, param=param)
        elif model.text_limit is not None:
            model.text_limit.check(prompt, param, is_cut=max_prompt_tokens is not None)
    call_id = f"{kind}-{uuid.uuid4().hex}"
    requests = tuple(
        Request(
            f"{call_id}-{index}" if len(prompts) > 1 else call_id,
            prompt,
            NO_TOKENS,
            pooling=pooling,
            adapter=model.adapter(asked.model),
            priority=asked.priority or 0,
            cache_salt=asked.cache_salt,
            timeout=asked.timeout,
            max_prompt_tokens=max_prompt_tokens,
            add_special_tokens=add_special_tokens,
        )
        for index, prompt in enumerate(prompts.values())
    )
    return Call(
        kind=kind,
        id=call_id,
        requests=requests,
        stream=False,
        include_usage=False,
        echo=False,
        prompt_logprobs=False,
        params_of_prompts=tuple(prompts),
        wanted=wanted,
    )
