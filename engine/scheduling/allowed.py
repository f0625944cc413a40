"""A request's `allowed_token_ids`, as its steps send them."""

from typing import NamedTuple

import numpy as np

_NONE = np.empty(0, np.int32)


class PackedAllowed(NamedTuple):
    """Ids, or a mask if that is shorter; neither if every token is allowed."""

    ids: np.ndarray = _NONE  # [*] int32
    words: np.ndarray = _NONE  # [ceil(V / 32)] int32: bit t % 32 of word t // 32 is token t's


ANY = PackedAllowed()
