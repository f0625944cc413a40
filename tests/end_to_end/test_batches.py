"""/v1/files and /v1/batches with the real `openai` client; what runs batches is killed."""

import io
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from tests.end_to_end.chaos.processes import ENGINE, GATEWAY, SERVING, find
from tests.end_to_end.conftest import Reference, Server
from tests.end_to_end.test_run_batch import chat, completion

DEADLINE_SECONDS = 300.0


def upload(client: openai.OpenAI, lines: list[dict[str, Any] | str]) -> str:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return client.files.create(file=("in.jsonl", io.BytesIO(text.encode())), purpose="batch").id


def create(client: openai.OpenAI, lines: list[dict[str, Any] | str], **fields: Any) -> Batch:
    arguments: dict[str, Any] = {"endpoint": "/v1/completions", "completion_window": "24h"} | fields
    return client.batches.create(input_file_id=upload(client, lines), **arguments)


def wait(client: openai.OpenAI, batch: Batch, until: Callable[[Batch], bool]) -> Batch:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not until(batch):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)  # the server has the cores
        batch = client.batches.retrieve(batch.id)
    return batch


def has_ended(batch: Batch) -> bool:
    return batch.status in ("completed", "failed", "expired", "cancelled")


def read(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_files(server: Server) -> None:
    client = server.client()
    content = os.urandom(3 << 20)
    made = client.files.create(file=("data.jsonl", io.BytesIO(content)), purpose="batch")
    assert (made.bytes, made.filename, made.purpose, made.status) == (3 << 20, "data.jsonl", "batch", "processed")
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).read() == content
    assert made.id in [file.id for file in client.files.list(purpose="batch")]
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.retrieve(made.id)
    assert caught.value.code == "file_not_found"


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        ({"data": {"purpose": "batch"}}, 415, "unsupported_media_type"),
        ({"files": {"file": ("a", b"x")}}, 400, "missing_required_parameter"),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "vision"}}, 400, "unsupported_value"),
        ({"files": {"file": ("a", b"")}, "data": {"purpose": "batch"}}, 400, "empty_file"),
        ({"files": [("file", ("a", b"x")), ("file", ("b", b"x"))], "data": {"purpose": "batch"}}, 400, "invalid_form"),
        ({"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data"}}, 400, "invalid_form"),
    ],
)
def test_bad_uploads(server: Server, form: dict[str, Any], status: int, code: str) -> None:
    answer = httpx.post(f"{server.url}/v1/files", **form)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_batch(server: Server, reference: Reference, questions: list[str]) -> None:
    client = server.client()
    lines = [chat(f"line-{number}", question, max_tokens=24) for number, question in enumerate(questions[:2])]
    bad: list[dict[str, Any] | str] = [completion(7), chat("bad", "hello", temperature=9), "nothing"]
    batch = create(client, [*lines, *bad], endpoint="/v1/chat/completions", metadata={"for": "test"})
    assert (batch.status, batch.metadata) == ("validating", {"for": "test"})
    batch = wait(client, batch, has_ended)
    assert batch.status == "completed" and batch.completed_at is not None
    assert batch.request_counts is not None and batch.request_counts.to_dict() == {
        "total": 5,
        "completed": 2,
        "failed": 3,
    }
    answers = {line["custom_id"]: line for line in read(client, batch.output_file_id)}
    texts = [answers[line["custom_id"]]["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
    assert texts == [reference.chat(question, 24)[0] for question in questions[:2]]
    failed = {line["custom_id"]: line for line in read(client, batch.error_file_id)}
    assert failed["line-7"]["error"]["code"] == "invalid_url"
    assert failed["bad"]["response"]["status_code"] == 400
    assert failed[None]["error"]["code"] == "invalid_line"
    assert batch.id in [each.id for each in client.batches.list(limit=2)]


def test_a_batch_with_one_id_twice_fails_before_anything_is_answered(server: Server) -> None:
    client = server.client()
    batch = wait(client, create(client, [completion(1), completion(2), completion(1)]), has_ended)
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    (error,) = batch.errors.data
    assert (error.code, error.param) == ("duplicate_custom_id", "custom_id")
    assert error.message == "requests 1 and 3 have one custom_id, 'line-1'"
    assert batch.output_file_id is None and batch.error_file_id is None


@pytest.mark.long
def test_a_batch_outlives_all_that_runs_it(server: Server) -> None:
    client = server.client()
    lines: list[dict[str, Any] | str] = [completion(number, max_tokens=8 + number % 40) for number in range(256)]
    batch = create(client, lines)
    batch = wait(client, batch, lambda found: bool(found.request_counts and found.request_counts.completed))
    assert batch.status == "in_progress"
    for title in (SERVING, "ray::Driver", "ray::Supervisor", GATEWAY):
        os.kill(find(title)[0], signal.SIGKILL)
    patient = client.with_options(max_retries=8)
    so_far = batch.request_counts.completed if batch.request_counts else 0
    batch = wait(patient, batch, lambda found: bool(found.request_counts and found.request_counts.completed > so_far))
    os.kill(find(ENGINE)[0], signal.SIGKILL)
    batch = wait(patient, batch, has_ended)
    assert batch.status == "completed" and batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (256, 0)
    answers = read(patient, batch.output_file_id)
    assert [answer["custom_id"] for answer in answers] == [f"line-{number}" for number in range(256)]
    lengths = [answer["response"]["body"]["usage"]["completion_tokens"] for answer in answers]
    assert lengths == [8 + number % 40 for number in range(256)]
    for number in (0, 100, 255):
        alone = patient.post("/completions", body=completion(number, max_tokens=8 + number % 40)["body"], cast_to=dict)
        assert answers[number]["response"]["body"]["choices"] == alone["choices"]


def test_a_cancelled_batch_keeps_what_was_answered(server: Server) -> None:
    client = server.client()
    batch = create(client, [completion(number, max_tokens=64) for number in range(512)])
    batch = wait(client, batch, lambda found: bool(found.request_counts and found.request_counts.completed))
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = wait(client, batch, has_ended)
    assert batch.status == "cancelled" and batch.request_counts is not None
    assert 0 < batch.request_counts.completed < 512
    assert len(read(client, batch.output_file_id)) == batch.request_counts.completed
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"endpoint": "/v1/nothing"}, 400, "invalid_value"),
        ({"endpoint": "/v1/files"}, 400, "invalid_value"),
        ({"completion_window": "1h"}, 400, "unsupported_value"),
        ({"input_file_id": "../../etc/passwd"}, 404, "file_not_found"),
        ({"input_file_id": "file-" + "0" * 32}, 404, "file_not_found"),
        ({"input_file_id": None}, 400, "invalid_type"),
        ({"metadata": {"a": 1}}, 400, "invalid_type"),
        ({"output_expires_after": {"seconds": 5}}, 400, "unsupported_parameter"),
        ({"expires": 5}, 400, "unknown_parameter"),
    ],
)
def test_bad_batches(server: Server, fields: dict[str, Any], status: int, code: str) -> None:
    asked = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": "file-" + "1" * 32} | fields
    answer = httpx.post(f"{server.url}/v1/batches", json=asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
