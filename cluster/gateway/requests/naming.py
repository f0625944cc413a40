"""Gives a request the id and the seed that engines see."""

import itertools
import secrets
from dataclasses import replace

from engine.request import Request


class Naming:
    """One gateway's."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._count = itertools.count()

    def as_engines_know(self, request: Request) -> Request:
        """The request with an id that no other request has, and with a seed, so that the next
        attempt samples the same tokens as the first one.
        """
        params = request.params
        if params.seed is None and params.beam_width is None:
            params = params.with_seed(secrets.randbits(63))
        return replace(request, id=f"{self._name}-{next(self._count)}", params=params)
