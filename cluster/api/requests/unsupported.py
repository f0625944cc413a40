"""Fields of OpenAI or of other servers that are not supported here and would change the answer.
Ignoring one would give another answer than requested, so they are rejected, except with values that
request nothing, which many clients always send.
"""

from typing import Annotated, Any

from pydantic import BaseModel

from cluster.api.requests.fields import Inert


class Unsupported(BaseModel):
    """Fields of both routes."""

    # Structured output, by other names than are supported
    guided_whitespace_pattern: Annotated[Any, Inert()] = None
    guided_decoding_backend: Annotated[Any, Inert()] = None
    structural_tag: Annotated[Any, Inert()] = None
    json_schema: Annotated[Any, Inert()] = None
    regex: Annotated[Any, Inert()] = None
    ebnf: Annotated[Any, Inert()] = None
    grammar: Annotated[Any, Inert()] = None
    # The prompt
    prompt_embeds: Annotated[Any, Inert()] = None
    truncate_prompt_tokens: Annotated[Any, Inert()] = None
    mm_processor_kwargs: Annotated[Any, Inert({})] = None
    media_io_kwargs: Annotated[Any, Inert({})] = None
    # Sampling
    logits_processors: Annotated[Any, Inert([])] = None
    custom_logit_processor: Annotated[Any, Inert()] = None
    logprob_token_ids: Annotated[Any, Inert()] = None
    thinking_token_budget: Annotated[Any, Inert(-1)] = None
    repetition_detection: Annotated[Any, Inert()] = None
    repeat_penalty: Annotated[Any, Inert(1)] = None
    typical_p: Annotated[Any, Inert(1)] = None
    top_a: Annotated[Any, Inert(0)] = None
    mirostat: Annotated[Any, Inert(0)] = None
    # The form of the answer
    return_token_ids: Annotated[Any, Inert(False)] = None
    return_tokens_as_token_ids: Annotated[Any, Inert(False)] = None
    return_hidden_states: Annotated[Any, Inert(False)] = None
    spaces_between_special_tokens: Annotated[Any, Inert(False, True)] = None  # a byte-level tokenizer adds none
    # Internals of other servers
    kv_transfer_params: Annotated[Any, Inert()] = None
    ec_transfer_params: Annotated[Any, Inert()] = None
    vllm_xargs: Annotated[Any, Inert({})] = None
    lora_path: Annotated[Any, Inert()] = None


class UnsupportedInChat(Unsupported):
    """Fields of chat completions."""

    functions: Annotated[Any, Inert([])] = None
    function_call: Annotated[Any, Inert("none", "auto")] = None
    prediction: Annotated[Any, Inert()] = None
    audio: Annotated[Any, Inert()] = None
    web_search_options: Annotated[Any, Inert()] = None
    moderation: Annotated[Any, Inert()] = None
    verbosity: Annotated[Any, Inert("medium")] = None  # OpenAI's default
    chat_template: Annotated[Any, Inert()] = None
    add_special_tokens: Annotated[Any, Inert(False)] = None
    echo: Annotated[Any, Inert(False)] = None
    best_of: Annotated[Any, Inert(1)] = None


class UnsupportedInCompletions(Unsupported):
    """Fields of completions."""

    suffix: Annotated[Any, Inert("")] = None
    add_special_tokens: Annotated[Any, Inert(True)] = None
