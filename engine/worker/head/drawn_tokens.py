"""Tokens that a later step begins with before the driver knows them: the last stage draws them, and
the first one embeds them.
"""

from collections import deque

import numpy as np
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
        self._kept: deque[tuple[int, Tensor]] = deque(maxlen=stage.size + 3)
        self._on_their_way: deque[tuple[int, int]] = deque()  # (step, R), at the first stage
        self._epoch = 0

    def keep(self, step: int, token_ids: Tensor) -> None:
        """The tokens [R] int32 of a step's rows."""
        self._kept.append((step, token_ids))

    def drew(self, request: ExecuteModelRequest, token_ids: Tensor) -> None:
        """The last stage has drawn the tokens [R] int32 of the step's rows."""
        self.keep(request.step, token_ids)
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
