"""Messages from the driver to a worker, in the order in which they are needed."""

from collections import deque

from cluster.sockets.connection import ChannelError, Connection
from cluster.workers.steps.messages import Message, decode
from engine.step import ExecuteModelRequest, StepMasks


class Inbox:
    """One thread's. Its `masks_of` is a `LateMasks`: steps that come before the masks wait."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages: deque[Message] = deque()

    def next_step(self) -> ExecuteModelRequest:
        """Wait for it. Masks before it are of steps that did not sample here, and dropped. Raises
        ConnectionEnded, ChannelError.
        """
        while True:
            while self._messages:
                message = self._messages.popleft()
                if isinstance(message, ExecuteModelRequest):
                    return message
            self._receive()

    def masks_of(self, request: ExecuteModelRequest) -> StepMasks:
        """Wait for them; raises as `next_step`."""
        num_seen = 0
        while True:
            while num_seen < len(self._messages):
                message = self._messages[num_seen]
                if isinstance(message, StepMasks) and message.step == request.step:
                    del self._messages[num_seen]
                    return message
                num_seen += 1
            self._receive()

    def _receive(self) -> None:
        for frame in self._connection.receive():
            message = decode(frame)
            if not isinstance(message, ExecuteModelRequest | StepMasks):
                raise ChannelError(f"the driver sent {type(message).__name__}")
            self._messages.append(message)
