"""The adapters that a rank has ready. A step names those of its rows; those that are not here are
read, so that a process that replaces a lost one finds them by itself.
"""

from collections import OrderedDict

import torch

from engine.step import ExecuteModelRequest
from parallel.adapters.adapter import ShardAdapter, StepAdapters
from parallel.adapters.files import read_factors
from parallel.adapters.places import AdapterPlaces
from parallel.decoder import Decoder

_Kept = OrderedDict[str, ShardAdapter]  # by digest, the one used last at the end


class Adapters:
    """Keeps those that were used last: `num_ready` for the next step, and `num_kept` in all. If
    these are more, the model's device has memory of its own, and copies wait in the host's.
    """

    def __init__(
        self, model: Decoder, num_ready: int, num_kept: int, max_rank: int = 0, max_taped_rows: int = 0
    ) -> None:
        """max_rank: of any; max_taped_rows: of a step on a tape, whose adapters are in `places`."""
        self._model = model
        self._num_ready, self._num_kept = num_ready, num_kept
        self.places = AdapterPlaces(num_ready, max_rank, max_taped_rows)
        self._ready: _Kept = OrderedDict()  # each in a place
        self._copies: _Kept = OrderedDict()  # of all that are ready too

    def of(self, request: ExecuteModelRequest) -> StepAdapters | None:
        """None if no row has one. Raises InvalidAdapter."""
        digests = request.adapter_digests
        if not digests:
            return None
        if len(digests) > self._num_ready:
            raise ValueError(f"step {request.step} has {len(digests)} adapters, and {self._num_ready} can be ready")
        for kept in (self._ready, self._copies):  # those of this step are not dropped for each other
            for digest in digests:
                if digest in kept:
                    kept.move_to_end(digest)
        adapters = [self._get(*each) for each in zip(digests, request.adapter_folders, strict=True)]
        return StepAdapters(torch.from_numpy(request.adapter_runs), adapters)

    def _get(self, digest: str, folder: str) -> ShardAdapter:
        adapter = self._ready.get(digest)
        if adapter is None:
            adapter = self._copy(digest) or self._read(digest, folder)
            for dropped in _add(self._ready, digest, adapter, self._num_ready):
                self.places.remove(dropped)
            self.places.put(adapter)
        return adapter

    def _copy(self, digest: str) -> ShardAdapter | None:
        """Of the one that waits."""
        copy = self._copies.get(digest)
        return None if copy is None else copy.to(self._model.device)

    def _read(self, digest: str, folder: str) -> ShardAdapter:
        model = self._model
        adapter = model.load_adapter(read_factors(folder, digest, model.config, model.dtype, model.device))
        if self._num_kept > self._num_ready:
            _add(self._copies, digest, adapter.to(torch.device("cpu")), self._num_kept)
        return adapter


def _add(kept: _Kept, digest: str, adapter: ShardAdapter, most: int) -> list[ShardAdapter]:
    """Returns those that were dropped for it."""
    dropped = []
    while len(kept) >= most:
        dropped.append(kept.popitem(last=False)[1])
    kept[digest] = adapter
    return dropped
