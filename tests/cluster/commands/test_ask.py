"""An answer is read as it streams; anything else is an error with the server's words."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from cluster.commands.ask import ask
from engine.errors import InvalidConfig

EVENT = 'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n'


@contextmanager
def server(status: int, body: str) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = Thread(target=listener.handle_request)
        thread.start()
        yield listener.server_port
        thread.join()


def test_an_answer_is_what_its_events_hold_until_the_last() -> None:
    with server(200, EVENT % "one " + EVENT % "two" + "data: [DONE]\n\n" + EVENT % "never") as port:
        assert list(ask(port, "demo", "count")) == ["one ", "two"]


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (503, "busy", "the server answered 503: busy"),
        (200, 'data: {"error": {"message": "lost"}}\n\n', "the server answered: lost"),
    ],
)
def test_other_answers_are_errors(status: int, body: str, sentence: str) -> None:
    with server(status, body) as port, pytest.raises(InvalidConfig, match=sentence):
        list(ask(port, "demo", "count"))
