"""An HTTP connection that lets answers write to it without a task."""

from functools import partial
from typing import cast
from weakref import ref

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from cluster.api.connection.body_writer import offer


class WritableConnection(HttpToolsProtocol):
    """uvicorn's, which offers what `cluster.api.connection.body_writer` describes."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None:
            offer(cast(Scope, self.cycle.scope), self.loop, partial(_write, ref(self.cycle)))


def _write(answer: "ref[RequestResponseCycle]", body: bytes) -> bool:
    """Write a part of the answer's body, as its `send` would. By a weak reference, since the answer
    has the scope that has this.
    """
    cycle = answer()
    if cycle is None or not cycle.chunked_encoding or cycle.response_complete or cycle.disconnected:
        return False
    if cycle.flow.write_paused or cycle.transport.is_closing():
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
    return True
