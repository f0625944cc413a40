"""The command's inputs, few of them, for the HTTP layer alone; and that the judge sees failures."""

import json
import time
from contextlib import nullcontext

import pytest
import requests
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cluster.api.edge.connection import Connection
from tests.cluster.api.scripted import listening, running
from tests.end_to_end.fuzz.drawn import cheap, read_whole, whole
from tests.end_to_end.fuzz.judge import GIVEN_UP_SECONDS, Judge
from tests.end_to_end.fuzz.neighbour import beside
from tests.end_to_end.fuzz.run import run
from tests.end_to_end.fuzz.series import SeriesCheck

ERROR = {"message": "no", "type": "invalid_request_error", "param": None, "code": "invalid_type"}


def test_the_http_layer_answers_anything() -> None:
    judge = Judge(hang_seconds=GIVEN_UP_SECONDS)
    with running(http=Connection) as server, beside(server.url) as gaps:
        run(server.url, judge, 100, scale=0.02, with_silence=False)
    print("\n".join(judge.lines()))
    assert judge.failures == []
    assert gaps["count"] > 0
    assert judge.num_inputs > 100 and judge.statuses[200] > 20


@pytest.mark.parametrize(
    ("status", "body", "seconds", "why"),
    [
        (500, {"error": ERROR}, 0.1, "status 500"),
        (503, {"error": ERROR | {"code": "engine_restarting"}}, 0.1, "status 503"),
        (400, {"error": "no"}, 0.1, "status 400 with the body"),
        (400, {"error": ERROR | {"code": 400}}, 0.1, "status 400 with the body"),
        (400, {"detail": "no"}, 0.1, "status 400 with the body"),
        (200, {}, 5.1, "hung for 5.1 s"),
        (400, {"error": ERROR | {"param": "seed"}}, 0.1, "refused what the document allows"),
    ],
)
def test_what_must_not_be_is_seen(status: int, body: object, seconds: float, why: str) -> None:
    judge = Judge()
    judge.check("it", status, json.dumps(body).encode(), seconds, is_allowed=True)
    (failure,) = judge.failures
    assert failure.startswith(why) and failure.endswith("it")


@pytest.mark.parametrize(
    ("gaps", "why"),
    [({"count": 9, "max": 0.31, "too_long": 1}, "waited 0.31 s"), ({"count": 0}, "no events"), ({}, "no events")],
)
def test_a_stream_that_is_held_up_is_seen(gaps: dict[str, float], why: str) -> None:
    judge = Judge()
    judge.check_gaps({"count": 9, "max": 0.3, "too_long": 0})
    assert judge.failures == []
    judge.check_gaps(gaps)
    assert why in judge.failures[0]


def test_an_answer_without_an_end_is_given_up() -> None:
    """However often some of it comes; `deadline` as time.monotonic() has it."""
    with running() as server:
        for deadline, is_in_time in ((time.monotonic() + 60, True), (0.0, False)):
            answer = requests.get(f"{server.url}/metrics", stream=True, timeout=60)
            with nullcontext() if is_in_time else pytest.raises(requests.Timeout):
                assert read_whole(answer, deadline) == b"# none\n"


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ('route="/v1/models",method="GET",status="404"', None),
        ('route="other",method="other",status="405"', None),
        ('route="/invented",method="GET",status="404"', "route='/invented'"),
        ('route="other",method="BREW",status="404"', "method='BREW'"),
        ('route="other",method="GET",status="404",reason="no_such"', "reason='no_such'"),
        ('route="other",method="GET",status="404",model_name="mine"', "model_name='mine'"),
    ],
)
def test_a_series_that_a_client_has_made_is_seen(labels: str, why: str | None) -> None:
    told = ['h_total{route="/health",method="GET",status="200",model_name="demo"} 1']

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_document = scope["path"] == "/openapi.json"
        answer = Response('{"paths": {"/v1/models": {}}}' if is_document else "\n".join(told) + "\n")
        await answer(scope, receive, send)

    judge = Judge()
    with listening(app) as port:
        series = SeriesCheck(f"http://127.0.0.1:{port}", judge)
        told.append(f"h_total{{{labels}}} 1")
        series.look()
    assert judge.num_series == (1, 2)
    assert [failure.split("\n")[0].removeprefix("a series that a client has made: ") for failure in judge.failures] == (
        [] if why is None else [why]
    )


def test_what_may_be_is_no_failure() -> None:
    judge = Judge()
    judge.check("it", 503, json.dumps({"error": ERROR | {"code": "server_overloaded"}}).encode(), 0.1)
    judge.check("it", 404, json.dumps({"error": ERROR | {"code": "model_not_found"}}).encode(), 0.1, is_allowed=True)
    assert judge.failures == []


def test_haproxys_page_is_an_answer_to_what_is_no_http_alone() -> None:
    judge = Judge()
    page = b"<html><body><h1>400 Bad request</h1>\nYour browser sent an invalid request.\n</body></html>\n"
    judge.check("no HTTP", 400, page, 0.1, is_http=False)
    assert judge.failures == []
    judge.check("no HTTP, and an error of the server", 500, page, 0.1, is_http=False)
    judge.check("no HTTP, and another page", 400, page.replace(b"Bad request", b"Traceback"), 0.1, is_http=False)
    judge.check("HTTP", 400, page, 0.1)
    assert [failure.split("\n    ")[1] for failure in judge.failures] == [
        *("no HTTP, and an error of the server", "no HTTP, and another page", "HTTP")
    ]


def test_bodies_are_made_cheap_and_stay_as_valid_as_they_were() -> None:
    assert cheap({"max_tokens": 99, "n": 0}) == {"max_tokens": 4, "n": 0}
    assert cheap({"max_completion_tokens": 2**70}) == {"max_completion_tokens": 2**70}
    assert cheap({"input": "a", "max_output_tokens": None})["max_output_tokens"] == 4
    assert cheap({"input": "a", "max_output_tokens": -1})["max_output_tokens"] == -1
    assert cheap([1]) == [1]
    assert whole({"a": [1.0, 1.5, {"b": -2.0}]}) == {"a": [1, 1.5, {"b": -2}]}
