"""A step's arrays on the device, with the tokens that the driver did not know when it built the
step.
"""

from collections import deque

import numpy as np
from torch import Tensor

from engine.step import ExecuteModelRequest
from engine.worker.device.transfer import upload, zeros
from engine.worker.step_tensors import StepTensors, table_arrays, write_tables
from ops.interface import AttentionMetadata
from parallel.decoder import Decoder

# Logits are made for so many rows at once: prompt logprobs may ask for thousands of rows of the
# whole vocabulary.
MAX_LOGITS_ROWS = 256
# Number of steps whose tokens are kept for later ones: more than are ever in flight.
_NUM_KEPT_STEPS = 4


class Inputs:
    """Of one rank's steps."""

    def __init__(self, model: Decoder) -> None:
        self._stage = model.stage
        self._device = model.device
        self._tokens: deque[tuple[int, Tensor]] = deque(maxlen=_NUM_KEPT_STEPS)  # (step, [R] int32), the newest last

    def keep(self, step: int, token_ids: Tensor) -> None:
        """The tokens [R] int32 of a step's rows, which later steps may carry."""
        self._tokens.append((step, token_ids))

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
            self.fill_carried(request, input_ids)
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

    def fill_carried(self, request: ExecuteModelRequest, input_ids: Tensor) -> None:
        """Write the tokens that the driver does not know yet into input_ids [T] int32."""
        if not len(request.carried_rows):
            return
        if not (self._stage.is_first and self._stage.is_last):
            raise ValueError("carried rows need the sampled tokens, which only a single stage has at its first layer")
        tokens = dict(self._tokens).get(request.carried_step)
        if tokens is None:
            raise ValueError(
                f"step {request.step} carries rows of step {request.carried_step}, whose tokens are not kept"
            )
        rows, sampled_rows = request.carried_rows.astype(np.int64).T
        carried = upload({"rows": rows, "sampled_rows": sampled_rows}, input_ids.device)
        input_ids.index_copy_(0, carried["rows"], tokens.index_select(0, carried["sampled_rows"]))
