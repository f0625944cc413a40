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

    def __init__(self, model: Decoder, token_ids: Tensor | None) -> None:
        """token_ids: of the cache, [num_blocks, 16] int32, where the tokens of each step are kept;
        None: nowhere.
        """
        self._stage = model.stage
        self._device = model.device
        self._ops = model.ops
        self._history = token_ids.view(-1) if token_ids is not None and model.stage.is_last else None
        self.tables, self.sets = BlockTables(), SetCopies()
        self.drawn = DrawnTokens(model.stage)
        if model.device.type != "cpu":
            self.drawn.make_ring(MAX_LOGITS_ROWS, model.device)

    @property
    def keeps_history(self) -> bool:
        """Whether `place` writes the tokens to the cache."""
        return self.drawn.ring is not None and self._history is not None

    def place(self, input_ids: Tensor, sources: Tensor, slots: Tensor) -> None:
        """Fill in the tokens that the driver did not know, and keep all in the cache: by one
        launch, where there is a ring of drawn tokens. Each [T] int32; sources: of
        `DrawnTokens.sources`.
        """
        if self.drawn.ring is None or not (self._stage.is_first or self._stage.is_last):
            return
        slots_kept = slots if self._history is not None else None
        self._ops.place_tokens(input_ids, sources, self.drawn.ring.view(-1), slots_kept, self._history)

    def read(self, request: ExecuteModelRequest) -> ExecuteModelRequest:
        """The step, with what earlier ones have brought. Each must come by, in order."""
        return self.sets.read(self.tables.read(request))

    def step_tensors(self, request: ExecuteModelRequest, received: Tensor | None) -> StepTensors:
        """`received`: from the stage before."""
        names = ("positions", "query_starts", "context_lens", "slot_mapping")
        sources = np.empty(len(request.input_ids), np.int32)
        are_all_there = self.drawn.sources(request, sources)
        width = int(np.diff(request.block_starts).max())
        arrays = {name: getattr(request, name) for name in names} | table_arrays(request, width)
        if self._stage.is_first or self.keeps_history:
            # What is filled in is not to change the request's own memory.
            arrays["input_ids"] = request.input_ids.copy() if len(request.carried_rows) else request.input_ids
            arrays["sources"] = sources
        tensors = upload(arrays, self._device)
        positions, input_ids = tensors.pop("positions"), tensors.pop("input_ids", None)
        if input_ids is not None:
            if not are_all_there:
                self.drawn.fill(request, input_ids)
            self.place(input_ids, tensors["sources"], tensors["slot_mapping"])
        if not self._stage.is_first:
            input_ids = None
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
