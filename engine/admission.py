"""From what a caller asks for to a `SequenceGroup`, or to a refusal that says what would fit."""

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from engine.batch import pack_params
from engine.beam_search import num_candidates
from engine.config import ModelConfig
from engine.detokenizer import Detokenizer
from engine.errors import InvalidRequest
from engine.outputs import RequestMetrics
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence, SequenceGroup
from engine.stopping import replay_text
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may take."""

    max_model_len: int  # tokens
    num_blocks: int
    block_size: int
    max_num_seqs: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


def check_request(prompt_token_ids: list[int], params: SamplingParams, limits: Limits) -> int:
    """The most tokens the request may generate; raises InvalidRequest if it could not run alone on an empty cache."""
    num_prompt, num_seqs = len(prompt_token_ids), params.num_samples
    if not num_prompt:
        raise InvalidRequest("the prompt is empty", param="prompt", code="empty_prompt")
    _check_ids("prompt", prompt_token_ids, limits.vocab_size)
    _check_ids("logit_bias", list(params.logit_bias or ()), limits.vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), limits.vocab_size)
    _check_ids("stop_token_ids", params.stop_token_ids, limits.vocab_size)
    _check_anything_is_left(params, limits)
    _check_num_logprobs(params, limits)
    if num_seqs > limits.max_num_seqs:
        raise InvalidRequest(f"{num_seqs} sequences exceed max_num_seqs={limits.max_num_seqs}", param="n")
    wanted = params.max_tokens if params.max_tokens is not None else max(limits.max_model_len - num_prompt, 1)
    total = num_prompt + wanted
    if max(total, num_prompt + params.min_tokens) > limits.max_model_len:
        asked = wanted if params.max_tokens is not None else f"at least {max(params.min_tokens, 1)}"
        raise InvalidRequest(
            f"{num_prompt} prompt tokens and {asked} to generate exceed the context of {limits.max_model_len}",
            param="prompt",
            code="context_length_exceeded",
        )
    needed = num_seqs * -(-total // limits.block_size)
    if needed > limits.num_blocks:
        raise InvalidRequest(
            f"{num_seqs} sequences of up to {total} tokens need {needed} cache blocks, and there are {limits.num_blocks}",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return wanted


def make_group(
    request_id: str,
    prompt_token_ids: list[int],
    params: SamplingParams,
    *,
    prompt: str | None,
    output_ids: Seq[Seq[int]],
    cumulative_logprobs: Seq[float],
    attempt: int,
    cache_salt: str | None,
    order: tuple[int, int],
    seed: int,
    max_output_tokens: int,
    arrival_time: float,
    model: ModelConfig,
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
) -> SequenceGroup:
    """A request's group, one sequence to begin with; or one for each choice that brings output tokens along."""
    outputs = output_ids if any(output_ids) else [()]
    is_beam_search = params.beam_width is not None
    has_bias = bool(params.logit_bias or params.bad_words or params.min_tokens)
    is_rare = params.has_penalties or has_bias or params.allowed_token_ids or params.prompt_logprobs is not None
    group = SequenceGroup(
        request_id=request_id,
        params=params,
        prompt=prompt,
        prompt_token_ids=prompt_token_ids,
        seqs=[Sequence(n, [*prompt_token_ids, *output], len(prompt_token_ids)) for n, output in enumerate(outputs)],
        order=order,
        seed=seed,
        max_output_tokens=max_output_tokens,
        stop_token_ids=_stop_token_ids(params, model.eos_token_ids),
        metrics=RequestMetrics(arrival_time, phase_start=arrival_time),
        prompt_logprobs_sent=any(output_ids),
        num_unforked=1 if any(output_ids) or is_beam_search else params.num_samples,
        attempt=attempt,
        cache_salt=hashlib.blake2b(cache_salt.encode(), digest_size=16).digest() if cache_salt else b"",
        bad_words_ids=_bad_words(params, tokenizer),
        history_matters=params.has_penalties or bool(params.bad_words) or is_beam_search,
        has_penalties=params.has_penalties,
        has_bias=has_bias,
        wants_rare_columns=bool(is_rare),
    )
    if is_beam_search:
        group.num_candidates = num_candidates(params, group.stop_token_ids, model.vocab_size)
    group.packed_params = pack_params(params, seed, group.num_candidates)
    for seq in group.seqs:
        replay_text(group, seq, detokenizer)
    for seq, cumulative_logprob in zip(group.seqs, cumulative_logprobs, strict=False):
        seq.cumulative_logprob = cumulative_logprob
    return group


def _check_ids(name: str, ids: Seq[int], vocab_size: int) -> None:
    bad = next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None)
    if bad is not None:
        raise InvalidRequest(f"{name}: token id {bad} is outside the vocabulary of {vocab_size}", param=name)


def _check_anything_is_left(params: SamplingParams, limits: Limits) -> None:
    """Before min_tokens no stop token may come, which must not be all there is."""
    if params.min_tokens and (params.stop_token_ids or params.allowed_token_ids):
        stops = _stop_token_ids(params, limits.eos_token_ids)
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
        num_candidates(params, _stop_token_ids(params, limits.eos_token_ids), limits.vocab_size)


def _stop_token_ids(params: SamplingParams, eos_token_ids: tuple[int, ...]) -> frozenset[int]:
    return frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else eos_token_ids)


def _bad_words(params: SamplingParams, tokenizer: Tokenizer) -> list[list[int]]:
    """Each word as it stands at the start of a text and after a space."""
    words = {tuple(tokenizer.encode_word(form)) for word in params.bad_words for form in (word, f" {word}")}
    return [list(word) for word in sorted(words) if word]
