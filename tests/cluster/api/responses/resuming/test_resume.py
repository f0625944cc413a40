"""A client that comes back to a stream, with the last event it had, gets the rest of it to the
byte.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest

from cluster.api.edge.connection import Connection
from cluster.api.keys.key_ring import KeyRing
from cluster.api.responses.resuming.streams import StreamRecord, Told
from cluster.gateway.streams.records.store_changes import StoreChanges
from cluster.gateway.streams.records.stream_records import StreamRecords
from engine.errors import FingerprintChanged
from tests.cluster.api.routes.test_generation import answer_to_head
from tests.cluster.api.scripted import FINGERPRINT, MODEL, Running, Script, running

SCRIPT = Script(["Hello", "", "", " wörld", "", "!", " Bye"])
TIMEOUT = 60.0
ROUTES = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]}, "/v1/completions": {"prompt": "x"}}
DIALECTS = {
    "/v1/messages": {"messages": ROUTES["/v1/chat/completions"]["messages"], "max_tokens": 20},
    "/v1/responses": {"input": "x"},
}
CHANGING = re.compile(rb'id: [^\n:]+|"(item_)?id":"[^"]+"|"(created|created_at|completed_at)":[0-9]+')
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "usage": {"stream_options": {"include_usage": True}},
    "seed": {"seed": 5, "temperature": 0.5},
    "an unknown field": {"max_token": 5},
    "logprobs": {"logprobs": 1},
    "echo": {"echo": True, "logprobs": 1},
    "ids": {"return_token_ids": True},
    "usage so far": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}


class Streams:
    """What is remembered, without an actor; `is_deaf`: what is told now is lost."""

    def __init__(self) -> None:
        self.records = StreamRecords()
        self.is_deaf = False

    async def open(self, request_id: str, record: StreamRecord) -> None:
        self.records.write(StoreChanges(opened={request_id: record}), 0.0)

    def told(self, told: Told) -> None:
        if not self.is_deaf:
            self.records.write(StoreChanges(told=[told]), 0.0)

    def close(self, request_id: str) -> None:
        self.records.write(StoreChanges(closed=[request_id]), 0.0)

    async def find(self, request_id: str) -> StreamRecord | None:
        return self.records.find(request_id, 0.0)


@pytest.fixture(scope="module")
def streams() -> Streams:
    return Streams()


@pytest.fixture(scope="module", params=["httptools", Connection], ids=["the long way", "the shortcut"])
def server(streams: Streams, request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(http=request.param, streams=streams, api_keys=KeyRing(["one", "two"])) as server:
        server.service.scripts["x"] = SCRIPT
        yield server


def ask(
    server: Running, route: str, fields: dict[str, Any], last: str | None = None, key: str = "one"
) -> httpx.Response:
    body = {"model": MODEL, "stream": True} | (ROUTES | DIALECTS)[route] | fields
    headers = {"authorization": f"Bearer {key}"} | ({} if last is None else {"Last-Event-ID": last})
    return httpx.post(server.url + route, json=body, headers=headers)


def fields_for(route: str, kind: str) -> dict[str, Any]:
    if route == "/v1/chat/completions" and "logprobs" in KINDS[kind]:
        return {"logprobs": True, "top_logprobs": 1}
    return KINDS[kind]


def events_of(answer: httpx.Response) -> list[bytes]:
    assert answer.status_code == 200, answer.text
    *events, rest = answer.content.split(b"\n\n")
    assert rest == b""
    return events


def id_of(event: bytes) -> str:
    line, _, data = event.partition(b"\n")
    assert line.startswith(b"id: ") and data.startswith(b"data: ")
    return line.removeprefix(b"id: ").decode()


@pytest.mark.parametrize("remembers", [True, False], ids=["", "tokens unheard of"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("route", ROUTES)
def test_from_every_event_the_rest_comes(
    server: Running, streams: Streams, route: str, kind: str, remembers: bool
) -> None:
    fields = fields_for(route, kind)
    streams.is_deaf = not remembers
    events = events_of(ask(server, route, fields))
    streams.is_deaf = False
    ids = [id_of(event) for event in events]
    assert [each.rpartition(":")[2] for each in ids] == [str(number) for number in range(1, len(ids) + 1)]
    assert events[-1].endswith(b"data: [DONE]")
    for number, last in reversed(list(enumerate(ids, 1))):
        assert events_of(ask(server, route, fields, last)) == events[number:]
        assert server.service.generated[-1].resume.fingerprint == FINGERPRINT, "wherever its first event came from"
    if remembers and kind in ("plain", "usage"):
        assert server.service.generated[-len(ids)].resume.output_ids, "what came long before is not computed again"


@pytest.mark.parametrize("route", [*ROUTES, *DIALECTS])
def test_the_shortcut_writes_what_the_long_way_does(streams: Streams, route: str) -> None:
    answers = []
    for http in ("httptools", Connection):
        with running(http=http, streams=streams) as server:
            server.service.scripts["x"] = SCRIPT
            answers.append(CHANGING.sub(b"", ask(server, route, {}).content))
            assert server.service.num_by_shortcut == (len(SCRIPT.texts) - 2 if http is Connection else 0)
    assert answers[0] == answers[1]
    assert answers[0].startswith(b":1\n") and answers[0].count(b"\n\n:") >= len([text for text in SCRIPT.texts if text])


@pytest.mark.parametrize("route", ROUTES)
def test_events_name_what_they_depend_on(server: Running, route: str) -> None:
    chunks = [json.loads(event.partition(b"data: ")[2]) for event in events_of(ask(server, route, {}))[:-1]]
    assert {chunk["system_fingerprint"] for chunk in chunks} == {FINGERPRINT}
    assert ask(server, route, {"stream": False}).json()["system_fingerprint"] == FINGERPRINT


def test_a_stream_of_an_unknown_fingerprint_is_not_taken_up(server: Running, streams: Streams) -> None:
    (last, *_) = map(id_of, events_of(ask(server, "/v1/completions", {})))
    streams.records.find(last.rpartition(":")[0], 0.0).fingerprint = None
    assert ask(server, "/v1/completions", {}, last).json()["error"]["code"] == "unknown_stream"


def test_an_id_is_good_for_its_own_request_and_key_only(server: Running) -> None:
    events = events_of(ask(server, "/v1/completions", {"max_tokens": 9}))
    last = id_of(events[2])
    assert events_of(ask(server, "/v1/completions", {"max_tokens": 9}, last)) == events[3:]
    request_id, _, number = last.rpartition(":")
    for answer in (
        ask(server, "/v1/completions", {"max_tokens": 8}, last),
        ask(server, "/v1/chat/completions", {"max_tokens": 9}, last),
        ask(server, "/v1/completions", {"max_tokens": 9}, last, key="two"),
        *[
            ask(server, "/v1/completions", {"max_tokens": 9}, wrong)
            for wrong in (
                f"x{last}",
                f"{request_id}:0",
                f"{request_id}:{len(events) + 1}",
                f"{request_id}:-1",
                f"{request_id}:{number}x",
                request_id,
                "",
            )
        ],
        ask(server, "/v1/completions", {"max_tokens": 9, "n": 2}, last),
    ):
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("unknown_stream", "Last-Event-ID")
    assert ask(server, "/v1/completions", {"max_tokens": 9}, last, key="three").status_code == 401


def test_a_stream_that_broke_is_never_refused_for_a_full_queue(server: Running) -> None:
    events = events_of(ask(server, "/v1/completions", {}))
    server.service.is_full = True
    try:
        assert events_of(ask(server, "/v1/completions", {}, id_of(events[2]))) == events[3:]
        answer = ask(server, "/v1/completions", {"stream": False}, id_of(events[2]))  # which cannot break
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_overloaded")
    finally:
        server.service.is_full = False


@pytest.mark.parametrize("last", ["cmpl-1:2", "x", ""])
def test_a_full_queue_is_not_opened_by_the_name_of_no_stream(server: Running, last: str) -> None:
    """The body is not read."""
    server.service.is_full = True
    try:
        answer = answer_to_head(server.port, f"authorization: Bearer one\r\nlast-event-id: {last}\r\n")
    finally:
        server.service.is_full = False
    assert answer.startswith("HTTP/1.1 404 ") and '"code":"unknown_stream"' in answer


@pytest.mark.parametrize("route", ROUTES)
def test_tokens_of_other_weights_do_not_go_on_a_stream(server: Running, route: str) -> None:
    """As after an update, or where an alias now stands for another model. Sent again as it is, the
    request would fail again: the client is told to begin anew.
    """
    fields = {"prompt": "old"} if route == "/v1/completions" else {"messages": [{"role": "user", "content": "old"}]}
    server.service.scripts["old"] = SCRIPT
    last = id_of(events_of(ask(server, route, fields))[1])
    server.service.scripts["old"] = Script([], error=FingerprintChanged("its tokens have the fingerprint fp_one"))
    answer = ask(server, route, fields, last)
    *_, told = answer.content.removesuffix(b"\n\n").split(b"\n\n")
    error = json.loads(told.removeprefix(b"data: "))["error"]
    assert (error["code"], error["param"]) == ("fingerprint_changed", "Last-Event-ID")
    assert "send the request again without Last-Event-ID (its tokens have the fingerprint fp_one)" in error["message"]
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert "retry-after" not in answer.headers
    anew = ask(server, route, fields)
    assert (anew.status_code, anew.json()["error"]["code"]) == (503, "fingerprint_changed")


@pytest.mark.parametrize("route", ROUTES)
def test_a_stream_whose_engine_is_being_replaced_can_be_resumed_later(server: Running, route: str) -> None:
    """It was waited for in vain, and may come yet: the client need not begin anew."""
    fields = {"prompt": "late"} if route == "/v1/completions" else {"messages": [{"role": "user", "content": "late"}]}
    server.service.scripts["late"] = SCRIPT
    events = events_of(ask(server, route, fields))
    last = id_of(events[1])
    server.service.scripts["late"] = Script([], error=FingerprintChanged("none within 9 s", is_final=False))
    answer = ask(server, route, fields, last)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "fingerprint_changed")
    assert answer.headers["retry-after"] and "x-should-retry" not in answer.headers
    server.service.scripts["late"] = SCRIPT
    assert events_of(ask(server, route, fields, last)) == events[2:]


@pytest.mark.parametrize("has_begun", [True, False])
def test_whoever_resumes_a_stream_takes_it_over(server: Running, has_begun: bool) -> None:
    """An event's id is good for one stream at a time, however many clients have it."""
    fields = {"prompt": "long"}
    server.service.scripts["long"] = SCRIPT
    events = events_of(ask(server, "/v1/completions", fields))
    last = id_of(events[0] if has_begun else events[-2])
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        stack.callback(server.service.scripts.pop, "long")
        before: tuple[Script, Future[tuple[int, bytes]]] | None = None
        for _ in range(3):
            script = server.service.scripts["long"] = Script(SCRIPT.texts[:5], waits=True)
            answer = pool.submit(read, server, fields, last)
            assert script.waiting.wait(TIMEOUT)
            if before is not None:
                check_taken_over(*before, events[1:2] if has_begun else None)
            before = script, answer
        server.service.scripts["long"] = SCRIPT
        rest = events_of(ask(server, "/v1/completions", fields, last))
        assert rest == (events[1:] if has_begun else events[-1:])
        assert before is not None
        check_taken_over(*before, events[1:2] if has_begun else None)
        assert events_of(ask(server, "/v1/completions", fields, last)) == rest, "it ended, and can be resumed again"


def test_an_event_that_there_is_not_takes_nobody_over(server: Running) -> None:
    """Neither who reads the stream nor who resumes it later is told of such a request."""
    fields = {"prompt": "read"}
    server.service.scripts["read"] = SCRIPT
    events = events_of(ask(server, "/v1/completions", fields))
    request_id, _, end = id_of(events[-1]).rpartition(":")
    first = id_of(events[0])
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        stack.callback(server.service.scripts.pop, "read")
        script = server.service.scripts["read"] = Script(SCRIPT.texts[:5], waits=True)
        reading = pool.submit(read, server, fields, first)
        assert script.waiting.wait(TIMEOUT)
        server.service.scripts["read"] = SCRIPT
        for number in (int(end) + 1, 999_999_999):
            answer = ask(server, "/v1/completions", fields, f"{request_id}:{number}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_stream")
            assert not script.closed.is_set() and not reading.done()
        assert events_of(ask(server, "/v1/completions", fields, first)) == events[1:]
        check_taken_over(script, reading, events[1:2])


def test_one_at_a_time_may_show_that_its_event_exists(server: Running) -> None:
    """A stream that nothing has been stored of costs two computations at most, whatever is sent."""
    fields = {"prompt": "shown"}
    server.service.scripts["shown"] = SCRIPT
    events = events_of(ask(server, "/v1/completions", fields))
    first, request_id = id_of(events[0]), id_of(events[0]).rpartition(":")[0]
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        stack.callback(server.service.scripts.pop, "shown")
        started = []
        for last in (first, f"{request_id}:500"):
            script = server.service.scripts["shown"] = Script(SCRIPT.texts[:5], waits=True)
            started.append((script, pool.submit(read, server, fields, last)))
            assert script.waiting.wait(TIMEOUT)
        num_generated = len(server.service.generated)
        answer = ask(server, "/v1/completions", fields, f"{request_id}:501")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert answer.headers["retry-after"] and len(server.service.generated) == num_generated
        assert not any(script.closed.is_set() for script, _ in started)
        server.service.scripts["shown"] = SCRIPT
        assert events_of(ask(server, "/v1/completions", fields, first)) == events[1:]
        check_taken_over(*started[0], events[1:2])
        check_taken_over(*started[1], None)


def check_taken_over(script: Script, answer: "Future[tuple[int, bytes]]", told: list[bytes] | None) -> None:
    """The engines no longer compute it; `told`: events that the client had before, None if it
    waited for the first.
    """
    assert script.closed.wait(TIMEOUT)
    status, received = answer.result(TIMEOUT)
    *parts, error = received.removesuffix(b"\n\n").split(b"\n\n")
    assert status == (409 if told is None else 200)
    assert parts[: len(told or ())] == (told or [])
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "stream_taken_over"


def read(server: Running, fields: dict[str, Any], last: str) -> tuple[int, bytes]:
    """Status and body, also of one that does not end as it should."""
    body, headers = {"model": MODEL, "stream": True} | fields, {"authorization": "Bearer one", "Last-Event-ID": last}
    received = b""
    with (
        suppress(httpx.RemoteProtocolError),
        httpx.stream("POST", server.url + "/v1/completions", json=body, headers=headers, timeout=TIMEOUT) as answer,
    ):
        for data in answer.iter_raw():
            received += data
    return answer.status_code, received


def test_the_header_is_described(server: Running) -> None:
    document = httpx.get(f"{server.url}/openapi.json", headers={"authorization": "Bearer one"}).json()
    for route in ROUTES:
        assert [each["name"] for each in document["paths"][route]["post"]["parameters"]] == ["Last-Event-ID"]


def test_several_choices_have_no_ids(server: Running) -> None:
    assert all(event.startswith(b"data: ") for event in events_of(ask(server, "/v1/completions", {"n": 2})))


def test_without_a_store_there_are_no_ids_and_nothing_to_come_back_to() -> None:
    with running() as server:
        assert "Last-Event-ID" not in httpx.get(f"{server.url}/openapi.json").text
        events = events_of(ask(server, "/v1/completions", {}))
        assert all(event.startswith(b"data: ") for event in events)
        assert ask(server, "/v1/completions", {}, "cmpl-1:1").json()["error"]["code"] == "unknown_stream"
