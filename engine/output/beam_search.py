"""Beam search: the `beam_width` best beams continue, finished ones compete for the answer.

The rules are those of transformers' `generate(num_beams=...)` (generation/utils.py,
`_beam_search`): scores are sums of raw log probabilities; a beam that ends counts only if it is
among the best beam_width of the step; finished beams are ranked by score / length **
length_penalty, the length being that of the output with its end token.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import InvalidRequest
from engine.outputs import CompletionOutput
from engine.sampling_params import SamplingParams
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.sequence import Sequence, SequenceGroup
from engine.text.tokenizer import Tokenizer

# Candidates per beam and step. As many are sorted for every row of the step that wants logprobs, of
# any request.
MAX_CANDIDATES = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    score: float
    parent: Sequence
    token_id: int
    is_end: bool


def num_candidates(params: SamplingParams, stop_token_ids: frozenset[int], vocab_size: int) -> int:
    """How many continuations of each beam are considered: enough for beam_width to continue even if
    every stop token ranks before them.

    Raises InvalidRequest if that is more than a step should sort for one request.
    """
    assert params.beam_width is not None
    needed = min(params.beam_width + len(stop_token_ids), vocab_size)
    if needed > MAX_CANDIDATES:
        raise InvalidRequest(
            f"beam_width={params.beam_width} and {len(stop_token_ids)} stop tokens, the model's own included, need "
            f"{needed} candidates of each beam; at most {MAX_CANDIDATES} are taken",
            param="beam_width",
        )
    return needed


def advance(group: SequenceGroup, blocks: BlockManager) -> bool:
    """Once every live beam has its candidates, choose the survivors; True when the search is
    over.
    """
    live = group.live
    if any(seq.candidates is None for seq in live):
        return False
    width = group.params.beam_width
    assert width is not None
    kept = _best(group, live, width)
    length = live[0].num_output_tokens + 1
    is_full = len(group.finished_beams) == width
    if not (is_full and group.params.early_stopping):
        ended = [_finish(candidate) for candidate in kept[:width] if candidate.is_end]
        ranked = sorted(group.finished_beams + ended, key=lambda seq: -_final_score(group, seq))
        group.finished_beams = ranked[:width]
    survivors = [candidate for candidate in kept if not candidate.is_end]
    if not survivors or _is_over(group, survivors[0].score, length):
        for seq in live:
            seq.finish_reason = "stop"
        return True
    _continue(group, live, survivors, blocks)
    return False


def results(group: SequenceGroup, tokenizer: Tokenizer) -> list[CompletionOutput]:
    """The n best finished beams, complete."""
    return [
        CompletionOutput(
            index=index,
            text=_text(group, seq, tokenizer),
            token_ids=seq.output_ids,
            cumulative_logprob=seq.cumulative_logprob,
            finish_reason="stop" if seq.token_ids[-1] in group.stop_token_ids else "length",
            stop_reason=seq.token_ids[-1] if seq.token_ids[-1] in group.params.stop_token_ids else None,
        )
        for index, seq in enumerate(group.finished_beams[: group.params.n])
    ]


def _best(group: SequenceGroup, live: list[Sequence], width: int) -> list[Candidate]:
    """The best continuations, ties in order of beam, up to the `width`-th that does not end. Each
    beam's are already sorted, so that only few are examined.
    """
    at_length = live[0].num_output_tokens + 1 >= group.max_output_tokens
    lines = [_continuations(group, seq, at_length=at_length) for seq in live]
    best: list[Candidate] = []
    num_going_on = 0
    for candidate in heapq.merge(*lines, key=lambda candidate: -candidate.score):
        best.append(candidate)
        num_going_on += not candidate.is_end
        if num_going_on == width or (at_length and len(best) == width):
            break
    return best


def _continuations(group: SequenceGroup, seq: Sequence, *, at_length: bool) -> Iterator[Candidate]:
    for token_id, logprob in seq.candidates or ():
        is_end = at_length or token_id in group.stop_token_ids
        yield Candidate(seq.cumulative_logprob + logprob, seq, token_id, is_end)


def _is_over(group: SequenceGroup, best_score: float, length: int) -> bool:
    """Whether the finished beams cannot be beaten any more, assuming that scores are best at the
    current length.
    """
    if len(group.finished_beams) < (group.params.beam_width or 0):
        return False
    if group.params.early_stopping:
        return True
    best_final_score: float = best_score / length**group.params.length_penalty
    return best_final_score <= _final_score(group, group.finished_beams[-1])


def _final_score(group: SequenceGroup, seq: Sequence) -> float:
    return float(seq.cumulative_logprob / seq.num_output_tokens**group.params.length_penalty)


def _finish(candidate: Candidate) -> Sequence:
    """A finished beam keeps its tokens but no blocks."""
    parent = candidate.parent
    seq = Sequence(parent.choice, [*parent.token_ids, candidate.token_id], parent.num_prompt_tokens)
    seq.cumulative_logprob = candidate.score
    seq.finish_reason = "stop"
    return seq


def _continue(group: SequenceGroup, live: list[Sequence], survivors: list[Candidate], blocks: BlockManager) -> None:
    """Each surviving continuation becomes a beam: a parent's first one takes its place, the others
    fork from it.
    """
    parents = {id(candidate.parent) for candidate in survivors}
    for seq in live:
        if id(seq) not in parents:
            blocks.free(seq)
    children: list[Sequence] = []
    taken: set[int] = set()
    for candidate in survivors:
        if id(candidate.parent) not in taken:
            taken.add(id(candidate.parent))
            children.append(candidate.parent)
        else:
            child = candidate.parent.fork(choice=0)
            blocks.fork(candidate.parent, child)
            children.append(child)
    for index, (child, candidate) in enumerate(zip(children, survivors, strict=True)):
        child.choice = index
        child.token_ids.append(candidate.token_id)
        child.cumulative_logprob = candidate.score
        child.candidates = None
    group.seqs[:] = children  # also its lane's list


def _text(group: SequenceGroup, seq: Sequence, tokenizer: Tokenizer) -> str:
    shown = seq.output_ids
    if shown[-1] in group.stop_token_ids and not group.params.include_stop_str_in_output:
        shown = shown[:-1]
    return tokenizer.decode(shown, skip_special_tokens=group.params.skip_special_tokens)
