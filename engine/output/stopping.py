"""When a sequence ends, and which of its text may be emitted although a stop string may still
follow.
"""

from collections.abc import Sequence as Seq

from engine.scheduling.sequence import Sequence, SequenceGroup
from engine.text.detokenizer import Detokenizer


def finish_or_continue(group: SequenceGroup, seq: Sequence, detokenizer: Detokenizer) -> str:
    """Check the sequence after its newest token: set finish_reason if it ends; return the text that
    may be emitted now.

    In this order: an end-of-sequence or stop token, a stop string, the end of its grammar, the
    length. An end before min_tokens cannot be sampled, and stop strings that begin before
    min_tokens is reached do not count; a grammar after whose text nothing can follow ends the
    answer even then. Raises InputProcessingError for a token that the grammar does not allow.
    """
    params = group.params
    token_id = seq.token_ids[-1]
    num_output = len(seq.token_ids) - seq.num_prompt_tokens
    if seq.thinking is not None:
        seq.thinking.take(token_id)
    if token_id in group.stop_token_ids and num_output > params.min_tokens:
        seq.finish_reason = "stop"
        seq.stop_reason = token_id if token_id in params.stop_token_ids else None
        shown = _take_held(seq)
        if params.include_stop_str_in_output:
            shown += detokenizer.push(seq.text, token_id, params.skip_special_tokens)
        return shown + detokenizer.flush(seq.text)
    text = detokenizer.push(seq.text, token_id, params.skip_special_tokens)
    if num_output < group.max_output_tokens and seq.matcher is None and not params.stop:
        return text  # most tokens
    is_complete = _is_complete(seq, token_id)
    at_end = is_complete or num_output >= group.max_output_tokens
    if at_end:
        text += detokenizer.flush(seq.text)
    if params.stop and num_output > params.min_tokens:
        text = _cut_at_stop(seq, text, params.stop, include=params.include_stop_str_in_output)
    if at_end and seq.finish_reason is None:
        seq.finish_reason = "stop" if is_complete else "length"
        text += _take_held(seq)
    return text


def replay_text(group: SequenceGroup, seq: Sequence, detokenizer: Detokenizer) -> None:
    """Bring the text state of a sequence that arrives with output tokens up to date."""
    token_ids, seq.token_ids = seq.token_ids, seq.token_ids[: seq.num_prompt_tokens]
    for token_id in token_ids[seq.num_prompt_tokens :]:
        seq.token_ids.append(token_id)
        finish_or_continue(group, seq, detokenizer)


def _is_complete(seq: Sequence, token_id: int) -> bool:
    """Give the token to the sequence's grammar: whether nothing can follow it there."""
    if seq.matcher is None:
        return False
    seq.matcher.take(token_id)
    return seq.matcher.is_complete


def _cut_at_stop(seq: Sequence, text: str, stops: Seq[str], *, include: bool) -> str:
    """Finish at the earliest stop string; otherwise hold back the longest end of the text that may
    begin one.
    """
    text = _take_held(seq) + text
    found = [(index, stop) for stop in stops if (index := text.find(stop)) >= 0]
    if found:
        index, stop = min(found, key=lambda pair: pair[0])
        seq.finish_reason = "stop"
        seq.stop_reason = stop
        return text[: index + len(stop)] if include else text[:index]
    for length in range(min(max(map(len, stops)) - 1, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            seq.text.held = text[-length:]
            return text[:-length]
    return text


def _take_held(seq: Sequence) -> str:
    held, seq.text.held = seq.text.held, ""
    return held
