"""SIGTERM for a replica's process. Ray's own handler waits until every call has ended; meanwhile it
accepts new calls and never starts them, so new requests would wait for the longest stream, and then
for the next replica.
"""

import ctypes
import signal


class ToldToStop(Exception):
    """Something other than Serve wants this process to end."""


class StopSignal:
    """SIGTERM, noted from now on."""

    def __init__(self) -> None:
        note_sigterm()
        self._has_come = False

    def check(self) -> None:
        """Raises ToldToStop after a SIGTERM. Must be called every few seconds: see
        `note_sigterm`.
        """
        self._has_come |= has_sigterm_come()
        if self._has_come:
            raise ToldToStop("this process got a SIGTERM")


def note_sigterm() -> None:
    """Make SIGTERM set an alarm, which ends this process 15 s later unless `has_sigterm_come` is
    called before.

    Python sets handlers from the main thread only, which is Ray's, and a handler may do next to
    nothing. `alarm` may be one: it is called with the number of the signal, which is 15, and sets
    the alarm to as many seconds.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGTERM, ctypes.cast(libc.alarm, ctypes.c_void_p))


def has_sigterm_come() -> bool:
    """Whether the alarm was set; clears it."""
    return signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0
