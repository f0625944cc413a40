"""Limits of a single request: one that could never run is rejected on arrival."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from engine.errors import NO_TOKEN_LEFT, InvalidRequest, context_exceeded
from engine.grammars.interface import Constraint, Matcher
from engine.output.beam_search import num_candidates
from engine.request import Adapter, Request
from engine.sampling_params import SamplingParams
from engine.scheduling.bans import nothing_left
from engine.scheduling.thinking import ThinkingBudget


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one request."""

    max_model_len: int  # tokens
    num_blocks: int
    block_size: int
    max_num_seqs: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_lora_rank: int = 0  # 0: there are no adapters


def check_request(request: Request, prompt_token_ids: list[int], limits: Limits) -> int:
    """The most tokens the request may generate; raises InvalidRequest if it could not run alone on
    an empty cache.

    A request with output tokens was started elsewhere, perhaps with a longer context: it continues
    up to this engine's limit.
    """
    params, output_ids = request.params, request.resume.output_ids
    num_prompt = len(prompt_token_ids)
    if not num_prompt:
        raise InvalidRequest("the prompt is empty", param="prompt", code="empty_prompt")
    _check_ids("prompt", prompt_token_ids, limits.vocab_size)
    _check_ids("logit_bias", list(params.logit_bias or ()), limits.vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), limits.vocab_size)
    _check_ids("stop_token_ids", params.stop_token_ids, limits.vocab_size)
    if request.pooling is not None:
        _check_ids("token_ids", request.pooling.token_ids, limits.vocab_size)
    _check_adapter(request.adapter, limits)
    _check_anything_is_left(params, limits)
    _check_num_logprobs(params, limits)
    room = limits.max_model_len - num_prompt
    wanted, least = max(room, 1), max(params.min_tokens, 1)
    if params.max_tokens is not None:
        wanted, least = (
            (min(params.max_tokens, wanted), least) if request.ends_with_context else (params.max_tokens,) * 2
        )
    if request.pooling is not None:
        wanted = least = 0
    if any(output_ids):
        least = max(map(len, output_ids))
    if least > room:
        raise no_room(num_prompt, f"at least {least}" if least != wanted else f"{least}", limits)
    if params.beam_width is not None:
        _check_beams_fit(params.beam_width, num_prompt, wanted, limits)
    return wanted


def no_room(num_prompt: int, asked: str, limits: Limits) -> InvalidRequest:
    """The error of a request for `asked` tokens that this context does not leave."""
    however = f"you requested {num_prompt} in the prompt and {asked} to generate"
    if num_prompt >= limits.max_model_len:
        however += ": the prompt is too long"
    return context_exceeded(limits.max_model_len, however, param="prompt")


def check_first_token(
    params: SamplingParams, bad_words_ids: Iterable[Seq[int]], matcher: Matcher | None, limits: Limits
) -> None:
    """Raises InvalidRequest if the request's parameters and its grammar leave no first token; a
    later one they may still exclude.
    """
    names = [name for name in ("allowed_token_ids", "bad_words", "min_tokens") if getattr(params, name)]
    if not names:
        return
    banned = {word[0] for word in bad_words_ids if len(word) == 1}
    if params.min_tokens:
        banned |= stop_token_ids(params, limits.eos_token_ids)
    mask = None
    if matcher is not None:
        banned.difference_update(limits.eos_token_ids)
        ends = limits.eos_token_ids if params.min_tokens or params.ignore_eos else ()
        mask = matcher.masks.fill([Constraint(matcher, ends)])[0]
    if nothing_left(params.allowed_token_ids, banned, mask):
        if params.structured_outputs is not None:
            names.append(params.structured_outputs.param)
        message = f"{' and '.join(names)} exclude each other: no first token is left"
        raise InvalidRequest(message, param=names[0], code=NO_TOKEN_LEFT)


def _check_beams_fit(beam_width: int, num_prompt: int, wanted: int, limits: Limits) -> None:
    """Beams advance together: all must fit into the cache at once. Choices take turns and need
    not.
    """
    if beam_width > limits.max_num_seqs:
        message = f"beam_width={beam_width} exceeds max_num_seqs={limits.max_num_seqs}"
        raise InvalidRequest(message, param="beam_width")
    needed = beam_width * -(-(num_prompt + wanted) // limits.block_size)
    if needed > limits.num_blocks:
        room = limits.num_blocks // beam_width * limits.block_size - num_prompt
        advice = f"max_tokens={room} would fit" if room > 0 else "fewer beams may fit"
        raise InvalidRequest(
            f"{beam_width} beams of up to {num_prompt + wanted} tokens need {needed} cache blocks, and there are "
            f"{limits.num_blocks}; {advice}",
            param="max_tokens",
            code="context_length_exceeded",
        )


def _check_ids(name: str, ids: Seq[int], vocab_size: int) -> None:
    bad = next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None)
    if bad is not None:
        raise InvalidRequest(f"{name}: token id {bad} is outside the vocabulary of {vocab_size}", param=name)


def _check_adapter(adapter: Adapter | None, limits: Limits) -> None:
    if adapter is None or adapter.rank <= limits.max_lora_rank:
        return
    if not limits.max_lora_rank:
        raise InvalidRequest(f"adapter {adapter.name}: this engine was started without enable_lora", param="model")
    raise InvalidRequest(
        f"adapter {adapter.name} has rank {adapter.rank}, and max_lora_rank is {limits.max_lora_rank}", param="model"
    )


def _check_anything_is_left(params: SamplingParams, limits: Limits) -> None:
    """Stop tokens are banned before min_tokens, so there must be other tokens."""
    if params.min_tokens and (params.stop_token_ids or params.allowed_token_ids):
        stops = stop_token_ids(params, limits.eos_token_ids)
        if not set(params.allowed_token_ids or range(limits.vocab_size)) - stops:
            raise InvalidRequest(
                f"min_tokens={params.min_tokens} forbids every token that may be sampled: all are stop tokens",
                param="min_tokens",
            )


def _check_num_logprobs(params: SamplingParams, limits: Limits) -> None:
    """A row has no more tokens than the vocabulary, and a step sorts only so many of each."""
    for name in ("logprobs", "prompt_logprobs"):
        if (getattr(params, name) or 0) > limits.vocab_size:
            message = f"{name}={getattr(params, name)} exceeds the vocabulary of {limits.vocab_size}"
            raise InvalidRequest(message, param=name)
    if params.beam_width is not None:
        num_candidates(params, stop_token_ids(params, limits.eos_token_ids), limits.vocab_size)


def stop_token_ids(params: SamplingParams, eos_token_ids: tuple[int, ...]) -> frozenset[int]:
    return frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else eos_token_ids)


def thinking_budget(
    params: SamplingParams, reasoning_ids: tuple[int, int] | None, is_blank: Callable[[int], bool]
) -> ThinkingBudget | None:
    """By the tokenizer's tokens around reasoning; raises InvalidRequest if it has none."""
    if params.thinking_token_budget is None:
        return None
    if reasoning_ids is None:
        raise InvalidRequest(
            f"thinking_token_budget={params.thinking_token_budget} is for models that reason: this one has no tokens "
            "<think> and </think>",
            param="thinking_token_budget",
            code="unsupported_parameter",
        )
    return ThinkingBudget(params.thinking_token_budget, *reasoning_ids, is_blank)
