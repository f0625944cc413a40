"""A connection of a gateway's own server: a full one refuses before the application is asked."""

from typing import Any, ClassVar

from starlette.types import Receive, Scope, Send

from cluster.api.edge.connection import Connection
from cluster.api.front.early import EarlyRefusals


class GatewayConnection(Connection):
    """A connection of a gateway's own server, which Serve starts for a load balancer (HAProxy)."""

    refusals: ClassVar[EarlyRefusals | None] = None  # of this process' gateway, once there is one

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._application = self.app
        self.app = self._first

    async def _first(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.refusals is None:
            await self._application(scope, receive, send)
        else:
            await self.refusals(self._application, scope, receive, send)
