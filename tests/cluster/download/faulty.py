"""Any application of WSGI under a server that fails on demand."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

LARGE = 1 << 20  # bytes of an answer, from which on it is a large one
Started = Callable[..., Any]


@dataclass
class Faulty:
    """Faults are set by the tests."""

    app: Callable[[dict[str, Any], Started], Iterable[bytes]]
    url: str = ""
    refuses: str = ""  # paths that have this in them
    refusal: bytes = b""  # the body of such an answer
    replaces: dict[str, str] = field(default_factory=dict)  # in short answers, what by what
    ignores_ranges: bool = False
    num_cut: int = 0  # of the next large answers, which end in their middle
    most: int | None = None  # large answers that are given; the next waits for `go_on`, and is lost
    has_halted: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    on_large: Callable[[], object] = object  # called before such an answer
    num_large: int = 0  # such answers so far
    sent: Counter[str] = field(default_factory=Counter)  # bytes of answers to GET, by the end of their paths

    def __call__(self, environ: dict[str, Any], start: Started) -> Iterable[bytes]:
        if self.refuses and self.refuses in environ["PATH_INFO"]:
            start("403 Forbidden", [("Content-Length", str(len(self.refusal))), ("Content-Type", "application/xml")])
            return [self.refusal]
        if self.ignores_ranges:
            environ.pop("HTTP_RANGE", None)
        body = b"".join(self.app(environ, start))
        if self.most is not None and len(body) >= LARGE and self.num_large >= self.most:
            self.has_halted.set()
            self.go_on.wait()
            return []
        if environ["REQUEST_METHOD"] == "GET":
            self.sent[environ["PATH_INFO"].rpartition("/")[2]] += len(body)
        if len(body) < LARGE:
            for what, by in self.replaces.items():
                assert len(what) == len(by)
                body = body.replace(what.encode(), by.encode())
            return [body]
        self.num_large += 1
        self.on_large()
        if self.num_cut:
            self.num_cut -= 1
            body = body[: len(body) // 2]
        return [body]


class _Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        return


@contextmanager
def faulty(app: Callable[[dict[str, Any], Started], Iterable[bytes]]) -> Iterator[Faulty]:
    made = Faulty(app)
    server = make_server("127.0.0.1", 0, made, threaded=True, request_handler=_Quiet)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield made
    finally:
        made.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
