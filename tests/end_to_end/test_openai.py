"""The real `openai` client against Serve."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Callable

import httpx
import openai
import pytest

from tests.end_to_end.conftest import LOOPBACK, Reference, Server

DEADLINE_SECONDS = 300.0


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def test_answers_as_one_rank_in_process_does(server: Server, reference: Reference, questions: list[str]) -> None:
    answer = server.client().chat.completions.create(
        model="demo", messages=messages(questions[0]), temperature=0, max_tokens=64
    )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == reference.chat(questions[0], 64)
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streams_the_same_answer(server: Server, reference: Reference, questions: list[str]) -> None:
    stream = server.client().chat.completions.create(
        model="demo",
        messages=messages(questions[1]),
        temperature=0,
        max_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert (text, reasons[-1]) == reference.chat(questions[1], 64)
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0


async def test_sixteen_streams_of_different_lengths(server: Server, reference: Reference, questions: list[str]) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    async def ask(question: str, max_tokens: int) -> tuple[str, str | None]:
        stream = await client.chat.completions.create(
            model="demo", messages=messages(question), temperature=0, max_tokens=max_tokens, stream=True
        )
        choices = [chunk.choices[0] async for chunk in stream if chunk.choices]
        return "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason

    asked = [(questions[number % len(questions)], 1 + 3 * number) for number in range(16)]
    async with client:
        answers = await asyncio.gather(*(ask(*each) for each in asked))
    assert answers == [reference.chat(*each) for each in asked]
    assert {reason for _, reason in answers} == {"length", "stop"}


def test_completions_and_models(server: Server) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == ["demo", "harbour"]
    answer = client.completions.create(
        model="demo", prompt="once", max_tokens=5, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 5


def test_health(server: Server) -> None:
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=DEADLINE_SECONDS)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"model": "other"}, 404, "model_not_found"),
        ({"temperature": 2.5}, 400, "decimal_above_max_value"),
        ({"messages": []}, 400, None),
        ({"max_tokens": 4000}, 400, "context_length_exceeded"),
        ({"messages": messages("word " * 3000)}, 400, "context_length_exceeded"),
        ({"stream": "yes"}, 400, "invalid_type"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_bad_input(server: Server, changes: dict[str, object], status: int, code: str | None, streaming: bool) -> None:
    body = {"model": "demo", "messages": messages("hello"), "stream": streaming, **changes}
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=DEADLINE_SECONDS)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    error = json.loads(response.read())["error"]
    connection.close()
    assert response.status == status
    assert set(error) == {"message", "type", "param", "code"}
    assert code is None or error["code"] == code


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
def test_a_disconnect_frees_the_blocks(server: Server, path: str, streaming: bool) -> None:
    idle = wait_until_idle(server)
    question = "What is 3 + 4?"
    prompt = {"/v1/completions": {"prompt": question}, "/v1/responses": {"input": question}}
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {
        "model": "demo",
        **prompt.get(path, {"messages": messages(question)}),
        limit: 1900,
        "ignore_eos": True,
        "skip_special_tokens": False,  # after its answer the model may go on with these alone
        "stream": streaming,
    }
    with socket.create_connection((LOOPBACK, server.port), timeout=DEADLINE_SECONDS) as connection:
        text = json.dumps(body)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(text)}"
        )
        connection.sendall(f"{head}\r\n\r\n{text}".encode())
        busy = wait_for_stats(server, lambda stats: stats["num_free_gpu_blocks"] < idle["num_free_gpu_blocks"])
        assert busy["num_requests_running"] == 1
        received = b""
        while streaming and not received.count(b"data: "):
            received += connection.recv(4096)
    after = wait_until_idle(server)
    assert after["num_free_gpu_blocks"] == idle["num_free_gpu_blocks"] == after["num_gpu_blocks"]
    assert after["num_generation_tokens"] - idle["num_generation_tokens"] < 1900


def wait_until_idle(server: Server) -> dict[str, int]:
    """The stats, once nothing runs or waits."""
    return wait_for_stats(server, lambda stats: stats["num_requests_running"] == stats["num_requests_waiting"] == 0)


def wait_for_stats(server: Server, are_those: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        stats = server.stats()
        if are_those(stats):
            return stats
        time.sleep(0.02)
    raise AssertionError(f"after {DEADLINE_SECONDS} s: {stats}")


def test_the_proxy_takes_any_request_id(server: Server) -> None:
    for value in (b"\xff\xfe", b"host.example/AbC-000001", b"|7ac1f.2_", b"Root=1-67891233-abcdef", b"x" * 1000):
        assert httpx.get(f"{server.url}/v1/models", headers=[(b"x-request-id", value)]).status_code == 200


@pytest.mark.parametrize("how", ["header", "body"])
def test_a_late_answer_is_an_error_and_its_blocks_are_free(server: Server, how: str) -> None:
    given = {"timeout": 0.5} if how == "body" else {}
    with pytest.raises(openai.APIError) as caught:
        for _ in server.client().completions.create(
            model="demo",
            prompt="once",
            max_tokens=1900,
            stream=True,
            extra_body={"ignore_eos": True} | given,
            extra_headers={"X-Request-Timeout": "0.5"} if how == "header" else {},
        ):
            pass
    assert caught.value.code == "deadline_exceeded"
    late = server.handle.generate.remote({"prompt": "once", "max_tokens": 1900, "ignore_eos": True, "timeout": 0.5})
    assert late.result()["error"]["code"] == "deadline_exceeded"
    stats = wait_until_idle(server)
    assert stats["num_free_gpu_blocks"] == stats["num_gpu_blocks"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"allowed_token_ids": [70, 71], "logit_bias": {"72": 100, "71": 50}}, [71] * 4),
        ({"allowed_token_ids": [70, 71], "logit_bias": {"71": -100}}, [70] * 4),
    ],
)
def test_a_bias_moves_what_is_allowed_and_nothing_else(
    server: Server, fields: dict[str, object], expected: list[int]
) -> None:
    more = fields | {"return_token_ids": True, "ignore_eos": True}
    answer = server.client().completions.create(model="demo", prompt="once", max_tokens=4, extra_body=more)
    assert answer.choices[0].token_ids == expected


def test_of_a_long_prompt_the_last_tokens_are_read(server: Server) -> None:
    asked = {"model": "demo", "max_tokens": 4, "temperature": 0}
    more = {"return_token_ids": True, "ignore_eos": True}
    client = server.client()
    cut = client.completions.create(
        **asked, prompt="seven lantern under march " * 400, extra_body=more | {"truncate_prompt_tokens": 9}
    ).choices[0]
    assert len(cut.prompt_token_ids) == 9
    whole = client.completions.create(**asked, prompt=cut.prompt_token_ids, extra_body=more).choices[0]
    assert (cut.text, cut.token_ids) == (whole.text, whole.token_ids)
