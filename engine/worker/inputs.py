"""A step's arrays on the device, with the tokens that the driver did not know when it built the
step.
"""

import numpy as np
from torch import Tensor

from engine.step import ExecuteModelRequest
from engine.worker.cache.block_tables import BlockTables
from engine.worker.device.transfer import upload, zeros
from engine.worker.head.drawn_tokens import DrawnTokens
from engine.worker.head.set_copies import SetCopies
from engine.worker.step_tensors import StepTensors, table_arrays, write_tables
from ops.interface import AttentionMetadata
from parallel.decoder import Decoder

# Logits are made for so many rows at once: prompt logprobs may ask for thousands of rows of the
# whole vocabulary.
MAX_LOGITS_ROWS = 256


class Inputs:
    """Of one rank's steps."""

    def __init__(self, model: Decoder) -> None:
        self._stage = model.stage
        self._device = model.device
        self.tables, self.sets = BlockTables(), SetCopies()
        self.drawn = DrawnTokens(model.stage)

    def read(self, request: ExecuteModelRequest) -> ExecuteModelRequest:
        """The step, with what earlier ones have brought. Each must come by, in order."""
        return self.sets.read(self.tables.read(request))

    def step_tensors(self, request: ExecuteModelRequest, received: Tensor | None) -> StepTensors:
        """`received`: from the stage before."""
        names = ("positions", "query_starts", "context_lens", "slot_mapping")
        width = int(np.diff(request.block_starts).max())
        arrays = {name: getattr(request, name) for name in names} | table_arrays(request, width)
        if self._stage.is_first:
            # What is filled in is not to change the request's own memory.
            arrays["input_ids"] = request.input_ids.copy() if len(request.carried_rows) else request.input_ids
        tensors = upload(arrays, self._device)
        positions, input_ids = tensors.pop("positions"), tensors.pop("input_ids", None)
        if input_ids is not None:
            self.drawn.fill(request, input_ids)
        tables = tensors.get("tables")
        if tables is None:
            tables = zeros((len(request.context_lens), width), self._device)
            write_tables(tensors, tables)
        metadata = AttentionMetadata(
            query_starts=tensors["query_starts"],
            context_lens=tensors["context_lens"],
            block_tables=tables,
            slot_mapping=tensors["slot_mapping"],
            max_query_len=int(np.diff(request.query_starts).max()),
            max_context_len=int(request.context_lens.max()),
        )
        return StepTensors(input_ids, received, positions, metadata)
