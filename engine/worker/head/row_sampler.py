"""A step's sampled rows: from the last stage's hidden states to tokens."""

from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from engine.step import ExecuteModelRequest, LateMasks
from engine.worker.cache.token_history import TokenHistory
from engine.worker.device.device import Capture
from engine.worker.device.transfer import upload
from engine.worker.graphs.sample_graphs import SampleGraphs
from engine.worker.head.sampler import PackedSample, Sampled, has_penalties, num_top_logprobs, sample, take_rows
from engine.worker.inputs import MAX_LOGITS_ROWS, Inputs
from parallel.decoder import Decoder


class RowSampler:
    """Of one rank of the last stage, with its cache's token ids [num_blocks, 16] int32; `speaks`:
    this rank's output is wanted.
    """

    def __init__(self, model: Decoder, token_ids: Tensor, inputs: Inputs, *, speaks: bool) -> None:
        self._model = model
        self._inputs = inputs
        self._history = TokenHistory(token_ids, inputs)
        self._speaks = speaks
        self.graphs: SampleGraphs | None = None

    def use_graphs(self, capture: Capture, hidden: Tensor, *, max_num_seqs: int, max_model_len: int) -> None:
        """Sample common rows by what `capture` makes of that from now on. hidden [*, D]: where
        graphs of layers leave their rows.
        """
        self.graphs = SampleGraphs(
            self._model.logits,
            self._model.ops,
            capture,
            max_num_rows=min(max_num_seqs, MAX_LOGITS_ROWS),
            max_model_len=max_model_len,
            hidden=hidden,
            drawn=self._inputs.drawn,
        )

    def sample(
        self, request: ExecuteModelRequest, hidden: Tensor | None, late_masks: LateMasks
    ) -> Sampled | PackedSample:
        """hidden [T, D] dtype of the step; None if it has no rows."""
        if hidden is not None:
            self._history.write(request)
        columns = request.sampling
        if self.graphs is not None and not request.awaits_masks and self.graphs.takes(columns):
            assert hidden is not None, "rows are sampled of a step without tokens"
            histories = self._history.of_rows(request, 0, len(columns.seed)) if has_penalties(columns) else None
            return self.graphs.run(_take(hidden, request.sampled_rows), columns, histories)
        num_top = num_top_logprobs(columns) if self._speaks else None
        num_rows = len(request.sampled_rows)
        parts = []
        for start in range(0, num_rows, MAX_LOGITS_ROWS):
            assert hidden is not None, "rows are sampled of a step without tokens"
            stop = min(start + MAX_LOGITS_ROWS, num_rows)
            logits = self._model.logits(_take(hidden, request.sampled_rows[start:stop]))
            if request.awaits_masks and start == 0:
                masks = late_masks(request)
                columns = replace(columns, mask_starts=masks.mask_starts, mask_words=masks.mask_words)
            part = take_rows(columns, start, stop)
            histories = self._history.of_rows(request, start, stop) if has_penalties(part) else None
            last_ids = self._history.last_ids(request, start, stop) if len(part.ban_starts) else None
            parts.append(sample(logits, part, self._model.ops, num_top, histories, last_ids))
        return _join(parts, self._model.device)


def _take(hidden: Tensor, rows: np.ndarray) -> Tensor:
    """These rows of hidden [T, D]; in decode steps they are all of them, one after the other."""
    if np.array_equal(rows, np.arange(len(hidden))):
        return hidden
    return hidden[upload({"rows": rows}, hidden.device)["rows"]]


def _join(parts: list[Sampled], device: torch.device) -> Sampled:
    if not parts:
        nothing = torch.empty(0, dtype=torch.int32, device=device)
        return Sampled(
            nothing, nothing.bool(), nothing.float(), nothing, nothing.view(0, 0), nothing.float().view(0, 0)
        )
    if len(parts) == 1:
        return parts[0]
    return Sampled(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Sampled)))
