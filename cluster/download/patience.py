"""How a store is waited for that breaks off, or asks to be left alone for a while."""

import time

from cluster.download.node_lock import Tell

MAX_ATTEMPTS = 6  # consecutive ones that bring nothing
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
LONGEST_ASKED_SECONDS = 900.0  # hubs count requests by minutes


class Patience:
    """Of one file or question; `tell` hears of waits that the store asks for."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._attempts = 0

    def renew(self) -> None:
        """Something came."""
        self._attempts = 0

    def wait(self, reason: str, asked: float | None = None) -> bool:
        """Whether to try again, once this returns: not after too many attempts, or if it would be
        too long. `asked`: the seconds that the store asks for; None: it does not.
        """
        self._attempts += 1
        if self._attempts >= MAX_ATTEMPTS or (asked or 0) > LONGEST_ASKED_SECONDS:
            return False
        if asked is not None:
            self._tell(f"{reason} It is asked again in {asked:.0f} s, as it says")
        time.sleep(max(asked or 0.0, min(FIRST_WAIT_SECONDS * 2 ** (self._attempts - 1), LONGEST_WAIT_SECONDS)))
        return True
