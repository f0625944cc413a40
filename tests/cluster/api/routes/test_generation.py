"""The door of both routes: refusals before the body is read, and timeouts."""

import socket
from http.client import HTTPResponse

import httpx
import openai
import pytest

from cluster.api.requests.fields import MAX_TIMEOUT
from engine.errors import DEADLINE_EXCEEDED, DeadlineExceeded
from tests.cluster.api.scripted import MODEL, Running, Script

PROMPT = {"model": MODEL, "prompt": "x" * 400}
ROUTE = "/v1/completions"


@pytest.mark.parametrize("header", ["", "origin: http://a.example\r\n", "last-event-id: cmpl-1:2\r\n"])
def test_a_full_queue_refuses_before_the_body_comes(server: Running, header: str) -> None:
    server.service.is_full = True
    answer = answer_to_head(server.port, header)
    assert answer.startswith("HTTP/1.1 503 ") and '"code":"server_overloaded"' in answer
    (seconds,) = [int(line[12:]) for line in answer.split("\r\n") if line.startswith("retry-after:")]
    assert 7 <= seconds <= 14
    assert server.service.generated == []
    assert server.service.asked_room == [((1, 60), None)]  # four bytes are about a token


def test_a_request_that_cannot_make_it_is_refused_before_its_body_comes(server: Running) -> None:
    server.service.queue_seconds = 5.0
    answer = answer_to_head(server.port, "x-request-timeout: 4.5\r\n")
    assert answer.startswith("HTTP/1.1 503 ") and '"code":"server_overloaded"' in answer
    assert server.service.asked_room == [((1, 60), 4.5)]


def answer_to_head(port: int, header: str) -> str:
    """The answer to a request whose body never comes."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(30)
        head = f"POST {ROUTE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 240\r\n"
        connection.sendall(f"{head}{header}\r\n".encode())
        answer = HTTPResponse(connection)
        answer.begin()
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *map(": ".join, answer.getheaders())]
        return "\r\n".join([*lines, "", answer.read().decode()])


def test_room_is_asked_for_all_prompts_of_a_request(server: Running, http: httpx.Client) -> None:
    assert http.post(ROUTE, json=PROMPT | {"prompt": ["y" * 40, "z" * 80], "timeout": 9}).status_code == 200
    assert server.service.asked_room[1] == ((2, 11 + 21), 9)


def test_the_smaller_timeout_of_body_and_header_goes_to_the_engine(server: Running, http: httpx.Client) -> None:
    for in_body, in_header in ((5, None), (None, "2.5"), (5, "2.5"), (5, "60"), (None, None)):
        headers = {"X-Request-Timeout": in_header} if in_header else {}
        assert http.post(ROUTE, json=PROMPT | {"timeout": in_body}, headers=headers).status_code == 200
    assert [request.timeout for request in server.service.generated] == [5, 2.5, 2.5, 5, None]


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "1e3", "86401", "9" * 400, "soon", ""])
def test_a_header_that_is_no_number_of_seconds(server: Running, http: httpx.Client, text: str) -> None:
    answer = http.post(ROUTE, json=PROMPT, headers={"X-Request-Timeout": text})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "X-Request-Timeout", "invalid_value")
    assert str(MAX_TIMEOUT) in error["message"]


@pytest.mark.parametrize("value", [0, -1, MAX_TIMEOUT + 1, "5", True])
def test_a_timeout_in_the_body_that_cannot_be(server: Running, http: httpx.Client, value: object) -> None:
    answer = http.post(ROUTE, json=PROMPT | {"timeout": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")


@pytest.mark.parametrize("by_engine", [True, False])
def test_a_late_answer_is_an_error_that_no_client_sends_again(
    server: Running, client: openai.OpenAI, by_engine: bool
) -> None:
    late = Script(["a"], error=DeadlineExceeded("late"))
    if by_engine:
        late = Script(["a"], finish_reason="error", error_code=DEADLINE_EXCEEDED)
    server.service.scripts["late"] = late
    asked = client.with_options(max_retries=5)
    with pytest.raises(openai.APIStatusError) as caught:
        asked.completions.create(model=MODEL, prompt="late")
    assert (caught.value.status_code, caught.value.code) == (504, DEADLINE_EXCEEDED)
    assert len(server.service.generated) == 1
    texts = []
    with pytest.raises(openai.APIError) as broken:
        for chunk in asked.completions.create(model=MODEL, prompt="late", stream=True):
            texts.append(chunk.choices[0].text)
    assert broken.value.code == DEADLINE_EXCEEDED
    assert texts == ([] if by_engine else ["a"])
