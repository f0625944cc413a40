"""What is to be answered."""

from dataclasses import dataclass

from cluster.batch.doors import Door
from cluster.batch.files.place import Place

MAX_LINES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is to be answered, by whom, and where the answers so far are."""

    source: Place
    parts: Place
    door: Door
    concurrency: int  # lines that are answered at once
    patience: float  # see `Answerer`
    max_lines: int = MAX_LINES
    url: str | None = None  # the only one that lines may ask; None: any
    refuses_twins: bool = False  # two lines with one custom_id, for which all lines are read at the beginning
