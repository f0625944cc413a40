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
from engine.sequence import Lane, Sequence, SequenceGroup
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


def check_request(
    prompt_token_ids: list[int], params: SamplingParams, output_ids: Seq[Seq[int]], limits: Limits
) -> int:
    """The most tokens the request may generate; raises InvalidRequest if it could not run alone on
    an empty cache.

    One that brings output tokens along was begun elsewhere, perhaps in a longer context: it goes on
    as far as this one reaches.
    """
    num_prompt = len(prompt_token_ids)
    if not num_prompt:
        raise InvalidRequest("the prompt is empty", param="prompt", code="empty_prompt")
    _check_ids("prompt", prompt_token_ids, limits.vocab_size)
    _check_ids("logit_bias", list(params.logit_bias or ()), limits.vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), limits.vocab_size)
    _check_ids("stop_token_ids", params.stop_token_ids, limits.vocab_size)
    _check_anything_is_left(params, limits)
    _check_num_logprobs(params, limits)
    room = limits.max_model_len - num_prompt
    wanted = params.max_tokens if params.max_tokens is not None else max(room, 1)
    least = max(params.min_tokens, 1) if params.max_tokens is None else wanted
    if any(output_ids):
        least = max(map(len, output_ids))
    if least > room:
        asked = f"at least {least}" if least != wanted else least
        raise InvalidRequest(
            f"{num_prompt} prompt tokens and {asked} to generate exceed the context of {limits.max_model_len}",
            param="prompt",
            code="context_length_exceeded",
        )
    if params.beam_width is not None:
        _check_beams_fit(params.beam_width, num_prompt, wanted, limits)
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
    max_model_len: int,
    shares_prefixes: bool,
    arrival_time: float,
    model: ModelConfig,
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
) -> SequenceGroup:
    """A request's group: a sequence and a lane for each choice, or one lane of beams, which are one
    sequence to begin with.

    `shares_prefixes`: with other requests; a request's own choices share their prompt always.
    """
    is_beam_search = params.beam_width is not None
    room = max_model_len - len(prompt_token_ids)
    has_bias = bool(params.logit_bias or params.bad_words or params.min_tokens)
    is_rare = params.has_penalties or has_bias or params.allowed_token_ids or params.prompt_logprobs is not None
    group = SequenceGroup(
        request_id=request_id,
        params=params,
        prompt=prompt,
        prompt_token_ids=prompt_token_ids,
        seqs=_sequences(prompt_token_ids, output_ids, 1 if is_beam_search else params.num_samples),
        order=order,
        seed=seed,
        max_output_tokens=min(max_output_tokens, room),
        is_cut=max_output_tokens > room,
        stop_token_ids=_stop_token_ids(params, model.eos_token_ids),
        metrics=RequestMetrics(arrival_time, phase_start=arrival_time),
        prompt_logprobs_sent=any(output_ids),
        attempt=attempt,
        cache_salt=_salt(cache_salt) if shares_prefixes else None,
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
    if is_beam_search:
        group.lanes = [Lane(group, group.seqs, (*order, 0), num_seats=params.num_samples)]
    else:
        group.lanes = [Lane(group, [seq], (*order, seq.choice), num_seats=1) for seq in group.live]
        if group.cache_salt is None and len(group.lanes) > 1:
            group.cache_salt = order[1].to_bytes(8)  # of this request alone
    return group


def _sequences(prompt: list[int], output_ids: Seq[Seq[int]], count: int) -> list[Sequence]:
    outputs = output_ids if any(output_ids) else [()] * count
    return [Sequence(choice, [*prompt, *output], len(prompt)) for choice, output in enumerate(outputs)]


def _salt(salt: str | None) -> bytes:
    return hashlib.blake2b(salt.encode(), digest_size=16).digest() if salt else b""


def _check_beams_fit(beam_width: int, num_prompt: int, wanted: int, limits: Limits) -> None:
    """Beams go on together, a step at a time: all must fit into the cache at once. Choices need
    not, they take turns.
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
