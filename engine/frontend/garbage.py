"""How often Python looks for garbage while an engine runs.

References free nearly all of a step's objects; the collector only finds cycles. At its own pace it
would walk every token of every sequence several times a step: at 4,000 sequences that was 40 % of
the driver's work.
"""

import gc

# A step of 4,000 sequences makes about 20,000 objects that the collector tracks.
YOUNG_OBJECTS = 100_000  # made, and not freed, since it last looked


def collect_rarely() -> tuple[int, int, int]:
    """Objects that exist now are taken for permanent. Returns what to give `collect_as_before`."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    return before


def collect_as_before(thresholds: tuple[int, int, int]) -> None:
    gc.set_threshold(*thresholds)
    gc.unfreeze()
