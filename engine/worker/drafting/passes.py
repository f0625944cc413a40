"""The passes of a draft model as steps of its own. The first computes what it lacks of each
sequence, up to the token that was sampled last; each further one has the token that the one before
guessed.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from engine.ragged import gathered, starts_of
from engine.sampling_columns import ALWAYS, SamplingColumns
from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import BLOCK_SIZE

_NO_PAIRS = np.empty((0, 2), np.int32)
# Ragged columns that guesses have: of starts, and of values.
_VALUES = {"allowed": ("allowed_ids",), "allowed_mask": ("allowed_mask_words",), "bias": ("bias_ids", "bias_values")}


@dataclass(frozen=True, slots=True)
class Line:
    """A sequence in a pass."""

    place: int  # among those that the draft model computes in the step
    sequence: int  # of the step
    row: int  # of the step's sampled rows, whose parameters the guesses have
    start: int  # position of the first token
    token_ids: list[int]
    num_wanted: int  # guesses, in this pass and those after it


def first_lines(request: ExecuteModelRequest, sampled: list[int]) -> list[Line]:
    """`sampled`: the tokens of the step's rows. Of those of a sequence, as many count as follow
    right drafts, and one more.
    """
    lines = []
    taken = 0
    for place, (sequence, start, num_known, row, num_rows, num_wanted) in enumerate(request.drafting.tolist()):
        token_ids = request.draft_ids[taken : taken + num_known].tolist()
        taken += num_known
        if num_wanted:
            end = int(request.query_starts[sequence + 1])
            drafts = request.input_ids[end - num_rows + 1 : end].tolist()
            last = row + num_right(drafts, sampled[row : row + num_rows])
            token_ids += sampled[row : last + 1]
            row = last
        lines.append(Line(place, sequence, row, start, token_ids, num_wanted))
    return lines


def num_right(drafts: list[int], sampled: list[int]) -> int:
    """How many of the drafts are what was sampled, up to the first that is not."""
    for index, draft in enumerate(drafts):
        if draft != sampled[index]:
            return index
    return len(drafts)


def next_lines(lines: list[Line]) -> list[Line]:
    """With the token that the pass of `lines` guesses, which is not known here: 0."""
    return [
        Line(line.place, line.sequence, line.row, line.start + len(line.token_ids), [0], line.num_wanted - 1)
        for line in lines
        if line.num_wanted > 1
    ]


def make_pass(
    request: ExecuteModelRequest, lines: list[Line], number: int, before: list[Line] | None = None
) -> ExecuteModelRequest:
    """The pass as a step of number `number`, in the blocks of `request`. `before`: the lines of the
    pass before, whose guesses are its input.
    """
    counts = np.array([len(line.token_ids) for line in lines], np.int32)
    starts = np.array([line.start for line in lines], np.int32)
    sequences = np.array([line.sequence for line in lines], np.int64)
    query_starts = starts_of(counts)
    owner = np.repeat(np.arange(len(lines)), counts)
    positions = np.arange(query_starts[-1], dtype=np.int32) - query_starts[owner] + starts[owner]
    block_starts, block_ids = _blocks(request, sequences)
    slots = block_ids[block_starts[owner] + positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    ids = np.array([token_id for line in lines for token_id in line.token_ids], np.int32)
    guessing = [index for index, line in enumerate(lines) if line.num_wanted]
    ends = starts + counts
    carried = _NO_PAIRS if before is None else _carried(lines, before)
    return ExecuteModelRequest(
        epoch=request.epoch,
        step=number,
        input_ids=ids,
        positions=positions,
        slot_mapping=slots.astype(np.int32, copy=False),
        query_starts=query_starts,
        context_lens=ends,
        block_starts=block_starts,
        block_ids=block_ids,
        sampled_rows=query_starts[1:][guessing] - 1,
        sampling=_columns(request.sampling, np.array([lines[index].row for index in guessing], int), ends[guessing]),
        carried_steps=np.full(len(carried), number - 1, np.int32),
        carried_rows=carried,
        blocks_to_swap_out=_NO_PAIRS,
        blocks_to_swap_in=_NO_PAIRS,
        blocks_to_copy=_NO_PAIRS,
    )


def with_known_ids(request: ExecuteModelRequest, vocab_size: int) -> ExecuteModelRequest:
    """For the layers of a draft model: ids from vocab_size on, which it lacks, are its last one."""
    return replace(request, input_ids=np.minimum(request.input_ids, vocab_size - 1))


def _carried(lines: list[Line], before: list[Line]) -> np.ndarray:
    """Which guess of the pass before each line begins with."""
    rows = {line.place: row for row, line in enumerate([each for each in before if each.num_wanted])}
    return np.array([(index, rows[line.place]) for index, line in enumerate(lines)], np.int32).reshape(-1, 2)


def _blocks(request: ExecuteModelRequest, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`block_starts` and `block_ids` of some of the step's sequences."""
    return _rows_of(request.block_ids, request.block_starts, sequences)


def _rows_of(values: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some of the rows: their starts, and their values."""
    taken = starts_of(starts[rows + 1] - starts[rows])
    return taken, gathered(values, starts[rows], taken)


def _columns(columns: SamplingColumns, rows: np.ndarray, positions: np.ndarray) -> SamplingColumns:
    """Those of the step's sampled rows `rows` at other positions: a guess is drawn as its token
    will be, but without logprobs and masks; no token is given, and requests with bad words have
    no guesses.
    """
    taken = {name: getattr(columns, name)[rows] for name in ALWAYS}
    taken |= {"position": positions.astype(np.int32), "logprob_counts": np.zeros(len(rows), np.int32)}
    names = {field.name for field in fields(SamplingColumns)} - set(ALWAYS)
    ragged = {name for kind, values in _VALUES.items() for name in (f"{kind}_starts", *values)}
    left_out = {"has_target", "target_ids", "mask_starts", "mask_words", "ban_starts", "ban_last_ids", "ban_ids"}
    for name in names - ragged - left_out:
        column = getattr(columns, name)
        taken[name] = column[rows] if len(column) else column
    for kind, values in _VALUES.items():
        starts = getattr(columns, f"{kind}_starts")
        if len(starts):
            for name in values:
                taken[f"{kind}_starts"], taken[name] = _rows_of(getattr(columns, name), starts, rows)
    return SamplingColumns(**taken)
