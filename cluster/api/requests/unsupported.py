"""Fields of OpenAI or of other servers that are not supported here and would change the answer.
Ignoring one would give another answer than requested, so they are rejected, except with values that
request nothing, which many clients always send.
"""

from typing import Annotated, Any

from pydantic import BaseModel

from cluster.api.requests.fields import Inert

_FORM = "structured_outputs has the same"
_TEXT_ONLY = "The model reads text only"
_CODE = "No code is taken from requests"
_SAMPLER = "There is no such sampler; temperature, top_k, top_p and min_p are supported"
_PREFILL = "Engines do not take the cache of a prompt from others"


class Unsupported(BaseModel):
    """Fields of both routes."""

    # Structured output, by other names than are supported
    guided_whitespace_pattern: Annotated[Any, Inert()] = None
    structural_tag: Annotated[Any, Inert()] = None
    json_schema: Annotated[Any, Inert(why=_FORM)] = None
    regex: Annotated[Any, Inert(why=_FORM)] = None
    ebnf: Annotated[Any, Inert(why=_FORM)] = None
    grammar: Annotated[Any, Inert(why=_FORM)] = None
    # The prompt
    prompt_embeds: Annotated[Any, Inert(why="A prompt is text or token ids, not vectors")] = None
    mm_processor_kwargs: Annotated[Any, Inert({}, why=_TEXT_ONLY)] = None
    media_io_kwargs: Annotated[Any, Inert({}, why=_TEXT_ONLY)] = None
    # Sampling
    logits_processors: Annotated[Any, Inert([], why=_CODE)] = None
    custom_logit_processor: Annotated[Any, Inert(why=_CODE)] = None
    logprob_token_ids: Annotated[Any, Inert(why="Log probabilities are those of the most likely tokens")] = None
    repetition_detection: Annotated[Any, Inert(why="Answers are not searched for repetition; penalties avoid it")] = (
        None
    )
    repeat_penalty: Annotated[Any, Inert(1, why="Here its name is repetition_penalty")] = None
    typical_p: Annotated[Any, Inert(1, why=_SAMPLER)] = None
    top_a: Annotated[Any, Inert(0, why=_SAMPLER)] = None
    mirostat: Annotated[Any, Inert(0, why=_SAMPLER)] = None
    # The form of the answer
    detokenize: Annotated[Any, Inert(True, why="An answer has its text; return_token_ids adds the ids")] = None
    return_hidden_states: Annotated[Any, Inert(False, why="Hidden states stay in the engine")] = None
    spaces_between_special_tokens: Annotated[Any, Inert(False, True)] = None  # a byte-level tokenizer adds none
    # Internals of other servers
    kv_transfer_params: Annotated[Any, Inert(why=_PREFILL)] = None
    ec_transfer_params: Annotated[Any, Inert(why=_PREFILL)] = None
    vllm_xargs: Annotated[Any, Inert({}, why="It is for extensions of vLLM")] = None
    lora_path: Annotated[Any, Inert(why="An adapter is named as the model")] = None


class UnsupportedInChat(Unsupported):
    """Fields of chat completions."""

    functions: Annotated[Any, Inert([], why="tools replaced it")] = None
    function_call: Annotated[Any, Inert("none", "auto", why="tool_choice replaced it")] = None
    audio: Annotated[Any, Inert(why="The model writes text only")] = None
    web_search_options: Annotated[Any, Inert(why="The server searches nothing; tools can")] = None
    moderation: Annotated[Any, Inert(why="Answers are not moderated")] = None
    chat_template: Annotated[Any, Inert(why="The checkpoint has the template; chat_template_kwargs sets variables")] = (
        None
    )
    best_of: Annotated[Any, Inert(1, why="It is for completions")] = None


class UnsupportedInCompletions(Unsupported):
    """Fields of completions."""

    suffix: Annotated[Any, Inert("", why="The model continues a text, and cannot fill a gap")] = None
