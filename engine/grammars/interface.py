"""What the engine asks of a grammar, whichever library has compiled it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


class GrammarTakesLong(Exception):
    """The grammar is not compiled after its first share of time."""


class Matcher(Protocol):
    """Where a sequence is in its grammar: a function of the grammar and of the tokens taken, so
    that it can be made again from these. Not thread-safe.
    """

    @property
    def masks(self) -> "Masks":
        """Those of its vocabulary."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow."""

    @property
    def is_spent(self) -> bool:
        """Whether others have used up what its grammar may take: it has to be compiled again."""

    @property
    def error(self) -> str | None:
        """Why no token can be allowed: a limit on one token's work was reached."""

    def copy(self) -> "Matcher": ...

    def take(self, token_id: int) -> None:
        """The sequence's next token; raises InputProcessingError if the grammar does not allow
        it. It may be the one after which there is an `error`.
        """

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of these could be taken next, each of which may be followed by another. Fewer
        where trying them may end other answers of the grammar.
        """

    def rehearse(self, token_ids: Sequence[int]) -> None:
        """Before these are taken again, of an answer that began elsewhere: work as they did there,
        so that what follows is no more work than it was. As long as their masks take.
        """


class Constraint(NamedTuple):
    """A row's matcher, and the end tokens that must not be sampled now if any other may."""

    matcher: Matcher
    banned_ends: Sequence[int]


class Masks(Protocol):
    """Makes the masks of a step's rows."""

    def fill(self, constraints: Sequence[Constraint]) -> np.ndarray:
        """[M, W] int32: bit t of a row is whether token t may be sampled. A row is 0 if its matcher
        has an error.
        """
