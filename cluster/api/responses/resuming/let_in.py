"""Whether a request may come in before its body is read: there is room, or it asks for the rest of
a stream that was let in before.
"""

from starlette.requests import Request

from cluster.api.arrivals import asks_for_rest, estimated_load, is_let_in
from cluster.api.errors import ApiError
from cluster.api.responses.resuming.streams import StreamStore, parse_event_id, unknown_stream
from cluster.api.service import Application
from engine.errors import Overloaded
from engine.request import NO_KEY, Share


class LetIn:
    """Of one application."""

    def __init__(self, application: Application, max_model_len: int, streams: StreamStore | None) -> None:
        """`streams`: those that may be resumed."""
        self._application = application
        self._max_model_len = max_model_len
        self._streams = streams

    async def check(self, request: Request, seconds: float | None, share: Share) -> bool:
        """Whether the request is new, and does not ask for the rest of a stream. Raises ApiError or
        Overloaded.
        """
        if self._streams is None or not asks_for_rest(request.scope):
            if not is_let_in():
                self.check_room(request, seconds, share)
            return True
        try:
            self.check_room(request, seconds, share)
        except (Overloaded, ApiError):
            last_event_id = request.headers["last-event-id"]
            request_id, _ = parse_event_id(last_event_id)
            if await self._streams.find(request_id) is None:
                raise unknown_stream(last_event_id) from None
        return False

    def check_room(self, request: Request, seconds: float | None = None, share: Share = NO_KEY) -> None:
        """Raises ApiError or Overloaded."""
        load = estimated_load(request.headers, self._max_model_len)
        self._application.check_room(load, seconds, share=share)
