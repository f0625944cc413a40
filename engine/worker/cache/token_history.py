"""The tokens so far of a step's rows, for penalties and bad words: they lie in the cache, in the
slots of their keys and values, so they are shared, copied and swapped as these are, and nobody
sends them.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.ragged import gathered, starts_of
from engine.sampling_columns import SamplingColumns
from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import BLOCK_SIZE
from engine.worker.device.transfer import upload
from engine.worker.inputs import Inputs


class Histories(NamedTuple):
    """Of R rows: row r's tokens are ids[starts[r] : starts[r] + lengths[r]]; none where it has no
    penalty.
    """

    ids: Tensor  # [*] int32
    starts: Tensor  # [R] int32
    lengths: Tensor  # [R] int32


class TokenHistory:
    """Of a rank of the last stage; `token_ids` [num_blocks, 16] int32 are its cache's."""

    def __init__(self, token_ids: Tensor, inputs: Inputs) -> None:
        self._token_ids = token_ids
        self._slots = token_ids.view(-1)
        self._inputs = inputs

    def write(self, request: ExecuteModelRequest) -> None:
        """Put the step's input ids where its keys and values go, unless its layers have."""
        if self._inputs.keeps_history:
            return
        has_carried = bool(len(request.carried_rows))
        input_ids = request.input_ids.copy() if has_carried else request.input_ids
        if self._slots.device.type == "cpu":  # a tenth of what calls of torch take
            if has_carried:
                self._inputs.drawn.fill(request, torch.from_numpy(input_ids))
            self._slots.numpy()[request.slot_mapping] = input_ids
            return
        tensors = upload({"ids": input_ids, "slots": request.slot_mapping}, self._slots.device)
        if has_carried:
            self._inputs.drawn.fill(request, tensors["ids"])
        self._slots[tensors["slots"]] = tensors["ids"]

    def of_rows(self, request: ExecuteModelRequest, start: int, stop: int) -> Histories:
        """Of the sampled rows start:stop, once the step is written."""
        columns = request.sampling
        has_penalty = columns.history_num_prompt[start:stop] > 0
        sampled_rows, num_seqs = request.sampled_rows[start:stop], len(request.context_lens)
        if (
            has_penalty.all()
            and np.array_equal(sampled_rows, np.arange(num_seqs))
            and num_seqs == len(request.positions)
            and not len(request.drafting)  # whose blocks are more: those that guesses are written to
        ):
            # A row for each sequence, whose blocks are there in this order: most steps.
            lengths, starts, blocks = request.context_lens, request.block_starts, request.block_ids
        else:
            lengths = np.where(has_penalty, columns.position[start:stop], 0).astype(np.int32)
            starts = starts_of(-(-lengths // BLOCK_SIZE))
            owners = np.searchsorted(request.query_starts, sampled_rows, side="right") - 1
            blocks = gathered(request.block_ids, request.block_starts[owners], starts)
        arrays = upload({"blocks": blocks, "starts": starts[:-1] * BLOCK_SIZE, "lengths": lengths}, self._slots.device)
        ids = self._token_ids.index_select(0, arrays["blocks"]).view(-1)
        return Histories(ids, arrays["starts"], arrays["lengths"])

    def last_ids(self, request: ExecuteModelRequest, start: int, stop: int) -> Tensor:
        """[stop - start] int32: the input ids of the sampled rows start:stop, once the step is
        written.
        """
        slots = request.slot_mapping[request.sampled_rows[start:stop]]
        return self._slots[upload({"slots": slots}, self._slots.device)["slots"]]


def history_room(columns: SamplingColumns) -> int:
    """Tokens, in whole blocks, of the rows that have penalties."""
    lengths = np.where(columns.history_num_prompt > 0, columns.position, 0)
    return int((-(-lengths // BLOCK_SIZE)).sum()) * BLOCK_SIZE
