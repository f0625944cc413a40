"""Which beginnings of prompts an engine replica has told its gateways. Each is told once, when the
engine has accepted the first prompt with it, and again if the cache has lost it meanwhile.
"""

from collections import OrderedDict
from itertools import islice

from engine.kv_events.beginnings import NAME_BYTES

MAX_TOLD_BYTES = 32 << 10  # to a gateway with one report; the oldest are dropped
MAX_KNOWN = 65_536  # beginnings; one that was forgotten is told again


class Told:
    """A replica's, of all its gateways."""

    def __init__(self) -> None:
        self._names: OrderedDict[bytes, None] = OrderedDict()  # the last used at the end
        self._num_cleared = 0

    def __len__(self) -> int:
        return len(self._names)

    def hear(self, beginnings: bytes) -> bytes:
        """The engine has accepted a prompt with these; those that the others do not know yet."""
        known, new = self._names, []
        for name in split(beginnings):
            if name in known:
                known.move_to_end(name)
            else:
                known[name] = None
                new.append(name)
        while len(known) > MAX_KNOWN:
            known.popitem(last=False)
        return b"".join(new)

    def has_lost(self, names: bytes, num_cleared: int) -> bool:
        """The cache has lost these, or all if it was cleared since the last call: whether so."""
        is_cleared = num_cleared != self._num_cleared
        if is_cleared:
            self._names.clear()
        for name in split(names):
            self._names.pop(name, None)
        self._num_cleared = num_cleared
        return is_cleared

    def recent(self) -> bytearray:
        """What a gateway that connects now is to know: those that were used last, the last at the
        end.
        """
        last = list(islice(reversed(self._names), MAX_TOLD_BYTES // NAME_BYTES))
        return bytearray(b"".join(reversed(last)))


def split(names: bytes) -> list[bytes]:
    return [names[end - NAME_BYTES : end] for end in range(NAME_BYTES, len(names) + 1, NAME_BYTES)]
