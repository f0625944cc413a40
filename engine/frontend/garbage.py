"""How often Python looks for garbage while an engine runs.

References free nearly all of a step's objects; the collector only finds cycles. At its own pace it
would walk every token of every sequence several times a step: at 4,000 sequences that was 40 % of
the driver's work.
"""

import gc
import threading

# A step of 4,000 sequences makes about 20,000 objects that the collector tracks.
YOUNG_OBJECTS = 100_000  # made, and not freed, since it last looked


class Collector:
    """Python's, which a process has one of, however many engines run in it: the first one slows it
    down, the last one to end sets it back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_engines = 0
        self._before = gc.get_threshold()

    def slow_down(self) -> None:
        """An engine runs. Objects that exist now are taken for permanent."""
        with self._lock:
            self._num_engines += 1
            if self._num_engines == 1:
                self._before = gc.get_threshold()
                gc.set_threshold(YOUNG_OBJECTS, *self._before[1:])
            gc.collect()
            gc.freeze()

    def set_back(self) -> None:
        """An engine for which it was slowed down has ended."""
        with self._lock:
            self._num_engines -= 1
            if self._num_engines == 0:
                gc.set_threshold(*self._before)
                gc.unfreeze()


COLLECTOR = Collector()
