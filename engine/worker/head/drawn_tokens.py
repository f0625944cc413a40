"""Tokens that a later step begins with before the driver knows them: the last stage draws them, and
the first one embeds them.
"""

from collections import deque

import numpy as np
import torch
from torch import Tensor

from engine.step import ExecuteModelRequest
from engine.worker.device.transfer import upload
from parallel.groups.pipeline import Stage


class DrawnTokens:
    """Of one rank's steps.

    The last of several stages returns those of steps that say so (`returns_tokens`), without
    waiting for anybody. The first one takes them in the order of the steps: up to the step of which
    one begins with tokens, and all that the driver must have known when it built the step. Those
    are there, so that it waits only for what it needs, and few are ever on their way. What it waits
    for depends only on steps that it has passed on already: no two stages wait for each other.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._max_in_flight = stage.size + 1  # steps
        # (step, [R] int32), the newest last: of more steps than are ever in flight.
        self._num_kept = stage.size + 3
        self._kept: deque[tuple[int, Tensor]] = deque(maxlen=self._num_kept)
        self._num_steps = 0  # that were kept
        self.ring: Tensor | None = None  # [kept steps and one more, R] int32, where kernels find them
        self._rows_in_ring: dict[int, int] = {}  # kept steps, and in which row their tokens are
        self._on_their_way: deque[tuple[int, int]] = deque()  # (step, R), at the first stage
        self._epoch = 0

    def make_ring(self, num_rows: int, device: torch.device) -> None:
        """Keep tokens at the same places of the device's memory from now on, of steps that have up
        to `num_rows`. No step may be under way.
        """
        self.ring = torch.zeros((self._num_kept + 1, num_rows), dtype=torch.int32, device=device)
        self._rows_in_ring.clear()

    def drop_ring(self) -> None:
        """Keep tokens wherever they are. No step may be under way."""
        self.ring = None
        self._rows_in_ring.clear()

    @property
    def next_row(self) -> int:
        """Of the ring: where the tokens belong that are kept next."""
        return self._num_steps % self._num_kept

    def keep(self, step: int, token_ids: Tensor, *, is_in_ring: bool = False) -> None:
        """The tokens [R] int32 of a step's rows; is_in_ring: in its next row."""
        row = self.next_row
        self._num_steps += 1
        if len(self._kept) == self._num_kept:
            self._rows_in_ring.pop(self._kept[0][0], None)
        if self.ring is not None and (is_in_ring or len(token_ids) <= self.ring.shape[1]):
            if not is_in_ring:
                token_ids = self.ring[row, : len(token_ids)].copy_(token_ids)
            self._rows_in_ring[step] = row
        self._kept.append((step, token_ids))

    def sources(self, request: ExecuteModelRequest, sources: np.ndarray) -> bool:
        """Write into sources [T] int32 where in the ring the tokens are that the driver does not
        know yet, and -1 for those it does. False if they are not all there: then all are -1, and
        `fill` brings them.
        """
        sources[:] = -1
        if not len(request.carried_rows):
            return True
        if self.ring is None:
            return False
        # numpy's sort would let the driver's thread have the interpreter, for milliseconds.
        for step in set(request.carried_steps.tolist()):
            row = self._rows_in_ring.get(step)
            if row is None:
                sources[:] = -1
                return False
            rows, sampled_rows = request.carried_rows[request.carried_steps == step].T
            sources[rows] = sampled_rows + row * self.ring.shape[1]
        return True

    def drew(self, request: ExecuteModelRequest, token_ids: Tensor, *, is_in_ring: bool = False) -> None:
        """The last stage has drawn the tokens [R] int32 of the step's rows."""
        self.keep(request.step, token_ids, is_in_ring=is_in_ring)
        if request.returns_tokens and len(token_ids) and not self._stage.is_first:
            self._stage.return_tokens(token_ids)

    def take(self, request: ExecuteModelRequest) -> None:
        """Before the first of several stages begins the step: what it needs of earlier ones."""
        if request.epoch != self._epoch:  # the ranks have met anew: nothing comes of earlier steps
            self._on_their_way.clear()
            self._epoch = request.epoch
        needed = request.step - self._max_in_flight
        if len(request.carried_steps):
            needed = max(needed, int(request.carried_steps.max()))
        while self._on_their_way and self._on_their_way[0][0] <= needed:
            step, num_rows = self._on_their_way.popleft()
            self.keep(step, self._stage.take_tokens(num_rows))
        if request.returns_tokens and len(request.sampled_rows):
            self._on_their_way.append((request.step, len(request.sampled_rows)))

    def fill(self, request: ExecuteModelRequest, input_ids: Tensor) -> None:
        """Write the tokens that the driver does not know yet into input_ids [T] int32. Stages
        between the first and the last need none.
        """
        if not len(request.carried_rows) or not (self._stage.is_first or self._stage.is_last):
            return
        kept = dict(self._kept)
        # numpy's sort would let the driver's thread have the interpreter, for milliseconds.
        for step in sorted(set(request.carried_steps.tolist())):
            tokens = kept.get(step)
            if tokens is None:
                raise ValueError(f"step {request.step} carries rows of step {step}, whose tokens are not kept")
            rows, sampled_rows = request.carried_rows[request.carried_steps == step].astype(np.int64).T
            if input_ids.device.type == "cpu":  # a tenth of what calls of torch take
                input_ids.numpy()[rows] = tokens.numpy()[sampled_rows]
                continue
            carried = upload({"rows": rows, "sampled_rows": sampled_rows}, input_ids.device)
            input_ids.index_copy_(0, carried["rows"], tokens.index_select(0, carried["sampled_rows"]))


def drawn_nowhere(ring: Tensor) -> int:
    """The row of a ring that nobody reads."""
    return len(ring) - 1
