"""Graphs by number of rows; each replaces many launches by one."""

import logging
import time
from collections.abc import Callable, Iterable

from torch import Tensor

from engine.worker.cache.kv_cache import BLOCK_SIZE
from engine.worker.device.device import Capture, Replay
from engine.worker.inputs import MAX_LOGITS_ROWS
from ops.interface import Draws
from parallel.decoder import Decoder

logger = logging.getLogger("squadron.worker")

SHORTEST_CONTEXT = 512
ROW_TILE = 128  # rows that a product of many computes at once: up to a multiple of it, padding costs nothing
MOST_MIXED_ROWS = 2048  # of more, even a small model's kernels take longer than their launches
SECONDS_BETWEEN_REPORTS = 2.0
KINDS: tuple[Draws, ...] = ("any", "unfiltered", "greedy")  # of draws, each with sampling graphs of its own
# Further kinds of sampling graphs, which draw "any": for rows with penalties, which need most
# memory, and for rows without, of whose tokens the logprobs are wanted.
PENALIZED, TOLD = len(KINDS), len(KINDS) + 1
NUM_KINDS = len(KINDS) + 2
MAX_HISTORY = 1 << 22  # tokens of a step's rows with penalties: of more, the step's sampling is launched
BYTES_PER_GRAPH = 2 << 20  # what the driver keeps of each, beside its memory pool: an estimate, not measured


def batch_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, and the multiples of 8 below max_num_seqs, and that."""
    return [size for size in (1, 2, 4, *range(8, max_num_seqs, 8)) if size < max_num_seqs] + [max_num_seqs]


def context_limits(max_model_len: int) -> list[int]:
    """Powers of 8 from 512 on below max_model_len, and that: how much room attention makes follows
    the longest context.
    """
    limits = []
    limit = SHORTEST_CONTEXT
    while limit < max_model_len:
        limits.append(limit)
        limit *= 8
    return [*limits, max_model_len]


def mixed_sizes(max_num_rows: int) -> list[int]:
    """Numbers of rows that mixed steps are padded to: 16, 32, 64 and the multiples of 128 below
    max_num_rows or 2048, and that.
    """
    most = min(max_num_rows, MOST_MIXED_ROWS)
    return [size for size in (16, 32, 64, *range(ROW_TILE, most, ROW_TILE)) if size < most] + [most]


def num_graphs(max_num_seqs: int, max_model_len: int, max_num_batched_tokens: int, *, samples: bool) -> int:
    """At most, of a stage; `samples`: it is the last one."""
    layers = len(batch_sizes(max_num_seqs)) * len(context_limits(max_model_len))
    layers += len(mixed_sizes(max_num_batched_tokens))
    return layers + samples * len(batch_sizes(min(max_num_seqs, MAX_LOGITS_ROWS))) * NUM_KINDS


def history_size(max_num_rows: int, max_model_len: int) -> int:
    """Tokens that sampling graphs have room for, in whole blocks of each row."""
    return min(max_num_rows * -(-max_model_len // BLOCK_SIZE) * BLOCK_SIZE, MAX_HISTORY)


def buffer_bytes(model: Decoder, max_num_rows: int, max_num_seqs: int, max_model_len: int) -> int:
    """That the buffers of a model's mixed and sampling graphs take, about."""
    num_rows = mixed_sizes(max_num_rows)[-1]
    residuals = num_rows * model.config.layer.hidden_size * model.dtype.itemsize
    tables = 4 * (max_num_seqs + 1) * -(-max(max_model_len, num_rows) // BLOCK_SIZE)
    history = 4 * history_size(min(max_num_seqs, MAX_LOGITS_ROWS), max_model_len) if model.stage.is_last else 0
    return (1 if model.stage.is_first else 2) * residuals + tables + history


class Graphs:
    """What was captured, by how many rows it is for (and more); each when it is first asked for.

    Where they share a memory pool, the largest is captured before the first: the others find room
    in what it leaves of the pool, which would else keep memory for each that came after a smaller
    one.
    """

    def __init__(self, capture: Capture, before: tuple[tuple[int, ...], ...], *, is_warmed_up: bool = True) -> None:
        """before: keys that are captured before any other. is_warmed_up: what is captured is
        computed once before, which a CUDA graph needs and a tape does not.
        """
        self._capture = capture
        self._before = before
        self._is_warmed_up = is_warmed_up
        self._replays: dict[tuple[int, ...], Replay] = {}
        self.num_captured = 0

    def __contains__(self, key: tuple[int, ...]) -> bool:
        return key in self._replays

    def of(self, key: tuple[int, ...], compute_of: Callable[..., Callable[[], Tensor]]) -> Replay:
        """compute_of(*key): what the graph for it computes; the first part of a key is the number
        of rows.

        It is not kept, so that graphs, and the weights and cache they hold, are freed with their
        owner.
        """
        for each in (*self._before, key):
            if each not in self._replays:
                self._replays[each] = self._make(each, compute_of(*each))
        return self._replays[key]

    def capture_all(
        self, keys: Iterable[tuple[int, ...]], compute_of: Callable[..., Callable[[], Tensor]], name: str
    ) -> None:
        """Capture each, and tell the log now and then how far it is; name: what is captured."""
        missing = [key for key in keys if key not in self._replays]
        told = time.monotonic()
        for number, key in enumerate(missing, start=1):
            self.of(key, compute_of)
            if number == len(missing) or time.monotonic() - told > SECONDS_BETWEEN_REPORTS:
                told = time.monotonic()
                logger.info("captured %d of %d graphs of %s", number, len(missing), name)

    def _make(self, key: tuple[int, ...], compute: Callable[[], Tensor]) -> Replay:
        # For what a capture needs to be there. Ranks exchange in it: out of memory here is the
        # step's end, on all of them.
        if self._is_warmed_up:
            compute()
        try:
            replay = self._capture(compute)
        except RuntimeError as error:  # no collective is waited for in a capture: ranks may differ in this
            reason = str(error).splitlines()[0]
            logger.warning("there is no graph of %d rows, such steps are launched as others are: %s", key[0], reason)
            return compute
        self.num_captured += 1
        return replay
