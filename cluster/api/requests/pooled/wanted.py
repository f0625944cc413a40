"""What only the answer of a pooled call needs to know."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WantedEmbeddings:
    is_base64: bool  # of float32, else lists of numbers
    dimensions: int | None


@dataclass(frozen=True, slots=True)
class WantedRanking:
    documents: tuple[str, ...] | None  # to be returned
    top_n: int | None


@dataclass(frozen=True, slots=True)
class WantedScores:
    """Nothing more."""


Wanted = WantedEmbeddings | WantedRanking | WantedScores
