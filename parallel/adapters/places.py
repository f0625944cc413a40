"""Adapters for steps on a tape, which reads who has which anew each time."""

import torch

from ops.interface import Adapted, AdapterSlots
from parallel.adapters.adapter import AdaptedLinear, ShardAdapter, StepAdapters

_BEHIND_ALL = torch.iinfo(torch.int32).max


class AdapterPlaces:
    """So many adapters at a time, each in one place until it is removed, and the rows of the next
    replay.
    """

    def __init__(self, num_places: int, max_rank: int, max_rows: int) -> None:
        """max_rows: of a step."""
        self._max_rank = max_rank
        self._held: list[ShardAdapter | None] = [None] * num_places
        self._slots: dict[int, AdapterSlots] = {}  # of linears that are on a tape, by id
        self._runs = torch.zeros((max_rows, 3), dtype=torch.int32)
        self._runs[:, :2] = _BEHIND_ALL

    def put(self, adapter: ShardAdapter) -> None:
        self._set(self._held.index(None), adapter)

    def remove(self, adapter: ShardAdapter) -> None:
        self._set(self._held.index(adapter), None)

    def _set(self, place: int, adapter: ShardAdapter | None) -> None:
        self._held[place] = adapter
        for linear, slots in self._slots.items():
            slots[place] = None if adapter is None else adapter.linears.get(linear)

    def assign(self, step: StepAdapters) -> None:
        """Have the rows of the next replay be this step's, whose adapters are in places."""
        places = torch.tensor([self._held.index(adapter) for adapter in step.adapters], dtype=torch.int32)
        count = len(step.runs)
        self._runs[:count] = step.runs
        self._runs[:count, 2] = places[step.runs[:, 2]]
        self._runs[count:, :2] = _BEHIND_ALL
        self._runs[count:, 2] = 0

    def of(self, linear: AdaptedLinear) -> Adapted:
        """Stays where it is, whatever adapters there are."""
        slots = self._slots.get(id(linear))
        if slots is None:
            slots = linear.ops.make_adapter_slots(len(self._held), self._max_rank, linear.num_parts)
            for place, adapter in enumerate(self._held):
                slots[place] = None if adapter is None else adapter.linears.get(id(linear))
            self._slots[id(linear)] = slots
        return Adapted(self._runs, slots)
