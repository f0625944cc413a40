"""Only the process that built an application may end it, although every Ray job of the cluster can
get the same handles.

This prevents mistakes. It is not access control: a job that may connect to a Ray cluster may run
code on it and kill its actors.
"""

import functools
import hmac
import secrets
from dataclasses import dataclass, field

from engine.errors import SquadronError


class NotOwner(SquadronError):
    """A caller that did not build the application tried to end a part of it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Known to the process that built an application, and to its replicas."""

    token: str = field(repr=False)

    def check(self, caller: object, wish: str) -> None:
        """Raises NotOwner."""
        token = caller.token if isinstance(caller, Owner) else ""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise NotOwner(
                f"{wish} is for the process that built the application; `serve.delete` ends one from any process"
            )


@functools.cache
def this_process() -> Owner:
    """The owner of every application that this process builds."""
    return Owner(secrets.token_hex(32))
