"""From an arrived request to the `SequenceGroup` that is queued."""

import hashlib
import random
from collections.abc import Iterable

from engine.admission.limits import Limits, check_first_token, check_request, no_room, stop_token_ids, thinking_budget
from engine.batch.packed import pack_bad_words, pack_params, pack_set, uses_rare_columns
from engine.config import EngineConfig
from engine.grammars.kept import Grammars
from engine.output.beam_search import num_candidates
from engine.output.output_processor import OutputProcessor
from engine.outputs import RequestMetrics
from engine.request import Arrival, Request
from engine.scheduling.sequence import Lane, Sequence, SequenceGroup

# One level of priority is worth this many arrivals: at most that many later requests overtake one,
# so that none starves.
ARRIVALS_PER_PRIORITY = 1000
_SALT = b"salt"  # sets the hashes of salts apart from those of blocks


class Admission:
    """Checks an engine's requests, and makes and orders their groups."""

    limits: Limits  # those of the workers' current cache

    def __init__(self, config: EngineConfig, processor: OutputProcessor, grammars: Grammars) -> None:
        self._has_priorities = config.scheduling_policy == "priority"
        self._shares_prefixes = config.enable_prefix_caching  # a request's own choices always share their prompt
        self._processor = processor
        self._reasoning = processor.tokenizer.reasoning_ids, processor.tokenizer.is_blank
        self._grammars = grammars
        self._seeds = random.Random(config.seed)
        self._num_arrivals = 0

    def check(self, arrival: Arrival, grammar_seconds: float | None = None) -> Arrival:
        """See `check_request`; also compiles the request's grammar, which may take seconds: raises
        GrammarTakesLong after `grammar_seconds` of processor time. Depends on nothing that changes
        while the engine runs, so any thread may call it, and should.
        """
        check_request(arrival.request, arrival.prompt_token_ids, self.limits)
        params = arrival.request.params
        thinking_budget(params, *self._reasoning)
        if arrival.matcher is not None:
            return arrival  # it has been checked
        has_tokens = any(arrival.request.resume.output_ids)
        if params.structured_outputs is not None:
            matcher = self._grammars.matcher(
                params.structured_outputs, was_accepted=has_tokens, first_seconds=grammar_seconds
            )
            for output_ids in arrival.request.resume.output_ids:
                matcher.rehearse(output_ids)
            arrival = arrival.with_matcher(matcher)
        if not has_tokens:
            check_first_token(params, self._bad_words(params.bad_words), arrival.matcher, self.limits)
        return arrival

    def compiles(self, request: Request) -> bool:
        """Whether `check` will have to compile the request's grammar."""
        asked = request.params.structured_outputs
        return asked is not None and not self._grammars.has(asked)

    def make_group(self, arrival: Arrival) -> SequenceGroup:
        """A request's group: a sequence and a lane for each choice, or one lane of beams, which
        begin as one sequence.

        Raises InvalidRequest.
        """
        arrival = self.check(arrival)
        max_output_tokens = check_request(arrival.request, arrival.prompt_token_ids, self.limits)
        request, params = arrival.request, arrival.request.params
        is_beam_search = params.beam_width is not None
        room = self.limits.max_model_len - len(arrival.prompt_token_ids)
        has_bias = bool(params.logit_bias or params.bad_words or params.min_tokens)
        bad_words = pack_bad_words(self._bad_words(params.bad_words))
        group = SequenceGroup(
            request=request,
            params=params,
            prompt=arrival.prompt,
            prompt_token_ids=arrival.prompt_token_ids,
            seqs=_sequences(arrival, 1 if is_beam_search else params.num_samples),
            order=self._take_place(request.priority),
            seed=(params.seed if params.seed is not None else self._seeds.getrandbits(64)) % 2**64,
            max_output_tokens=min(max_output_tokens, room),
            is_cut=max_output_tokens > room,
            stop_token_ids=stop_token_ids(params, self.limits.eos_token_ids),
            token_set=pack_set(params, self.limits.vocab_size, bad_words),
            metrics=RequestMetrics(arrival.time, phase_start=arrival.time),
            prompt_logprobs_sent=any(request.resume.output_ids),
            prefix_salt=_salt(request) if self._shares_prefixes else None,
            bad_words=bad_words,
            eos_token_ids=self.limits.eos_token_ids,
            history_matters=params.history_matters,
            has_penalties=params.has_penalties,
            has_bias=has_bias,
            wants_rare_columns=uses_rare_columns(params),
            pooling=request.pooling,
        )
        if is_beam_search:
            group.num_candidates = num_candidates(params, group.stop_token_ids, self.limits.vocab_size)
        group.packed_params = pack_params(params, group.seed, group.num_candidates)
        budget = thinking_budget(params, *self._reasoning)
        for seq in group.seqs:
            if arrival.matcher is not None:
                seq.matcher = arrival.matcher.copy()
            elif budget is not None:  # an answer with a form has no reasoning
                seq.thinking = budget.state(arrival.prompt_token_ids)
        group.is_plain = _is_plain(group)
        self._processor.replay(group)
        _check_goes_on(group, self.limits)
        _make_lanes(group)
        return group

    def _bad_words(self, bad_words: Iterable[str]) -> list[list[int]]:
        """The token ids of each word, at the start of a text and after a space."""
        encode_word = self._processor.tokenizer.encode_word
        words = {tuple(encode_word(form)) for word in bad_words for form in (word, f" {word}")}
        return [list(word) for word in sorted(words) if word]

    def _take_place(self, priority: int) -> tuple[int, int]:
        """The order of the request that arrives now."""
        number = self._num_arrivals
        self._num_arrivals += 1
        return number + (priority * ARRIVALS_PER_PRIORITY if self._has_priorities else 0), number


def _is_plain(group: SequenceGroup) -> bool:
    """See `SequenceGroup.is_plain`."""
    params, seq = group.params, group.seqs[0]
    is_one = params.num_samples == 1 and params.beam_width is None and params.best_of is None  # it is told at the end
    has_more = params.logprobs is not None or params.prompt_logprobs is not None or params.stop
    is_free = seq.matcher is None and seq.thinking is None and group.pooling is None and not group.is_cut
    return is_one and is_free and not has_more


def _check_goes_on(group: SequenceGroup, limits: Limits) -> None:
    """Raises InvalidRequest if tokens from elsewhere fill this context, which is shorter."""
    if group.is_cut and any(seq.finish_reason == "length" for seq in group.seqs):
        raise no_room(len(group.prompt_token_ids), f"at least {group.max_output_tokens + 1}", limits)


def _make_lanes(group: SequenceGroup) -> None:
    if group.params.beam_width is not None:
        group.lanes = [Lane(group, group.seqs, (*group.order, 0), num_places=group.params.num_samples)]
        return
    group.lanes = [Lane(group, [seq], (*group.order, seq.choice), num_places=1) for seq in group.live]
    if group.prefix_salt is None and len(group.lanes) > 1:
        group.prefix_salt = group.order[1].to_bytes(8)  # of this request alone


def _sequences(arrival: Arrival, count: int) -> list[Sequence]:
    prompt, output_ids = arrival.prompt_token_ids, arrival.request.resume.output_ids
    outputs: Iterable[Iterable[int]] = output_ids if any(output_ids) else [()] * count
    return [Sequence(choice, [*prompt, *output], len(prompt)) for choice, output in enumerate(outputs)]


def _salt(request: Request) -> bytes:
    """Keys and values depend on the adapter."""
    salt, adapter = request.cache_salt or "", request.adapter
    if adapter is None:
        return hashlib.blake2b(salt.encode(), digest_size=16, person=_SALT).digest() if salt else b""
    return hashlib.blake2b(salt.encode(), digest_size=16, key=bytes.fromhex(adapter.digest), person=_SALT).digest()
