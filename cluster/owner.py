"""Who may end an application: the process that built it. Every other Ray job of the cluster has the
same handles, and may not.

This keeps callers from ending by mistake what is not theirs. It is no wall: whoever is let into a
Ray cluster may run code on it and kill its actors.
"""

import functools
import hmac
import secrets
from dataclasses import dataclass, field

from engine.errors import SquadronError


class NotOwner(SquadronError):
    """A caller who did not build the application wants to end a part of it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Known to the process that built an application, and to its replicas."""

    token: str = field(repr=False)

    def check(self, caller: object, wish: str) -> None:
        """Raises NotOwner."""
        token = caller.token if isinstance(caller, Owner) else ""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise NotOwner(
                f"{wish} is for the process that built the application; `serve.delete` ends one for everybody"
            )


@functools.cache
def this_process() -> Owner:
    """The owner of every application that this process builds."""
    return Owner(secrets.token_hex(32))
