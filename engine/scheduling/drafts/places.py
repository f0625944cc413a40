"""Where the newest tokens of a sequence have occurred before, as compressors find it: places that
follow the same tokens are in one chain.
"""

from array import array

import numpy as np

_FACTOR = 1_000_003  # odd: of the keys, low bits alone tell chains apart
_ROOM = 2  # chains for each token that there is, when they are made, at least


class Places:
    """Of one sequence: for each place, the one before it that follows the same `width` tokens; a
    place is the number of tokens before it. Chains are told apart by a hash, and so may have other
    places between. A token takes 16 to 28 bytes.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self.ids = array("i")  # the tokens
        self._before = array("i", bytes(4 * width))  # of each place, the one before in its chain; 0: none
        self._newest = array("i")  # of each chain; as many as a power of two

    def take(self, token_ids: list[int]) -> None:
        """The places that are new; the tokens are as many as before, or more."""
        self.ids.extend(token_ids[len(self.ids) :])
        count, width = len(token_ids), self._width
        if count > len(self._newest):
            self._make()
            return
        before, newest, mask = self._before, self._newest, len(self._newest) - 1
        for place in range(len(before), count + 1):
            key = 0
            for token_id in token_ids[place - width : place]:
                key = key * _FACTOR + token_id
            chain = key & mask
            before.append(newest[chain])
            newest[chain] = place

    def few(self, most: int) -> list[int] | None:
        """Those that may follow the newest tokens, in order; None if they are more than `most`."""
        places: list[int] = []
        if len(self._before) <= self._width:
            return places
        place = self._before[-1]
        while place:
            if len(places) == most:
                return None
            places.append(place)
            place = self._before[place]
        return places[::-1]

    def _make(self) -> None:
        """All of them, as `take` does one by one."""
        width, ids = self._width, np.frombuffer(self.ids, np.int32).astype(np.uint32)
        num_chains = 1 << (_ROOM * len(ids)).bit_length()
        end = max(len(ids) + 1, width)
        chains = np.zeros(end - width, np.uint32)
        for offset in range(width):
            chains = chains * np.uint32(_FACTOR) + ids[offset : offset + end - width]
        both = (chains & np.uint32(num_chains - 1)).astype(np.int64) << 32 | np.arange(width, end)
        both.sort()  # the places of a chain beside each other, in order
        chain, place = both >> 32, both & 0xFFFFFFFF
        is_same = chain[1:] == chain[:-1]
        before, newest = np.zeros(end, np.int32), np.zeros(num_chains, np.int32)
        before[place[1:][is_same]] = place[:-1][is_same]
        newest[chain] = place  # of several, the last one stays
        self._before, self._newest = array("i", before.tobytes()), array("i", newest.tobytes())
