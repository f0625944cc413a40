"""The adapters that a rank has ready. A step names those of its rows; those that are not here are
read, so that a process that replaces a lost one finds them by itself.
"""

from collections import OrderedDict

import torch

from engine.step import ExecuteModelRequest
from parallel.adapters.adapter import ShardAdapter, StepAdapters
from parallel.adapters.files import read_factors
from parallel.decoder import Decoder


class Adapters:
    """Keeps the `max_kept` that were used last."""

    def __init__(self, model: Decoder, max_kept: int) -> None:
        self._model = model
        self._max_kept = max_kept
        self._kept: OrderedDict[str, ShardAdapter] = OrderedDict()  # by digest, the one used last at the end

    def of(self, request: ExecuteModelRequest) -> StepAdapters | None:
        """None if no row has one. Raises InvalidAdapter."""
        digests = request.adapter_digests
        if not digests:
            return None
        if len(digests) > self._max_kept:
            raise ValueError(f"step {request.step} has {len(digests)} adapters, and {self._max_kept} can be kept")
        for digest in digests:  # those of this step are not dropped for each other
            if digest in self._kept:
                self._kept.move_to_end(digest)
        adapters = [self._get(*each) for each in zip(digests, request.adapter_folders, strict=True)]
        return StepAdapters(torch.from_numpy(request.adapter_runs), adapters)

    def _get(self, digest: str, folder: str) -> ShardAdapter:
        adapter = self._kept.get(digest)
        if adapter is None:
            while len(self._kept) >= self._max_kept:
                self._kept.popitem(last=False)
            model = self._model
            factors = read_factors(folder, digest, model.config, model.dtype, model.device)
            adapter = self._kept[digest] = model.load_adapter(factors)
        return adapter
