"""`squadron run-batch` as a user starts it: by a server's Ray cluster, by HTTP and with a model of
its own.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.batch.files.place import Place
from cluster.cli import main
from tests.end_to_end.conftest import DEMO, Reference, Server
from tests.end_to_end.test_command import ROOT, SQUADRON
from tests.object_store import object_store

PART_SECONDS = 300.0  # for the first part to be written
BAD = ["not JSON", '{"custom_id": "no-body", "method": "POST", "url": "/v1/completions"}']


def chat(custom_id: str, question: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "demo", "messages": [{"role": "user", "content": question}], "temperature": 0} | fields
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def completion(number: int, **fields: Any) -> dict[str, Any]:
    body = {"model": "demo", "prompt": f"number {number}", "temperature": 0, "ignore_eos": True} | fields
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}


def write(path: Path, lines: list[dict[str, Any] | str]) -> None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")


def start(server: Server | None, *arguments: object) -> subprocess.Popen[str]:
    environment = os.environ | (server.ray.environment if server is not None else {})
    command = [*SQUADRON, "run-batch", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=2400)
    assert process.returncode == 0, errors
    return out


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_killed_run_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    source, output, parts = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.jsonl.parts"
    asked = [completion(number, max_tokens=8 + number % 40) for number in range(128)]
    write(source, asked)
    arguments = ("-i", source, "-o", output, "--ray-address", server.ray.address, "--concurrency", 8)
    first = start(server, *arguments)
    deadline = time.monotonic() + PART_SECONDS
    while not list(parts.glob("*.jsonl")):
        assert first.poll() is None and time.monotonic() < deadline, first.communicate()
        time.sleep(0.02)  # the server has the cores
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kept = b"".join(part.read_bytes() for part in sorted(parts.glob("*.jsonl"))).decode().splitlines()
    assert 0 < len(kept) < len(asked) and not output.exists()

    assert end(start(server, *arguments)).startswith(f"{len(asked)} lines: {len(asked)} answered, 0 failed")
    lines = output.read_text(encoding="utf-8").splitlines()
    assert lines[: len(kept)] == kept  # nothing was answered twice
    answers = [json.loads(line) for line in lines]
    assert [answer["custom_id"] for answer in answers] == [line["custom_id"] for line in asked]
    lengths = [answer["response"]["body"]["usage"]["completion_tokens"] for answer in answers]
    assert lengths == [line["body"]["max_tokens"] for line in asked]
    assert not parts.exists()


def test_bad_lines_fail_alone_over_http_from_an_object_store_and_back(
    server: Server, reference: Reference, questions: list[str], tmp_path: Path
) -> None:
    wrong = [
        chat("unknown-model", "hello", model="other"),
        chat("stream", "hello", stream=True),
        {**chat("unknown-url", "hello"), "url": "/v1/nothing"},
        {**chat("inner", "hello"), "url": "/v1/batches"},
    ]
    right = [chat(f"line-{number}", question, max_tokens=24) for number, question in enumerate(questions[:3])]
    write(tmp_path / "in.jsonl", [right[0], *BAD, "", *wrong, *right[1:]])
    with object_store() as uri:
        source, output = uri.replace("?", "/in.jsonl?"), uri.replace("?", "/out.jsonl?")
        Place.at(source).write((tmp_path / "in.jsonl").read_bytes())
        done = end(start(None, "-i", source, "-o", output, "--base-url", server.url))
        assert done.startswith("9 lines: 3 answered, 6 failed")
        answers = [json.loads(line) for line in Place.at(output).read().splitlines()]
        assert Place.at(uri).names() == ["in.jsonl", "out.jsonl"] and Place.at(uri).folders() == []
    names = ["line-0", None, "no-body", "unknown-model", "stream", "unknown-url", "inner", "line-1", "line-2"]
    assert [answer["custom_id"] for answer in answers] == names
    told = [
        answer["error"]["code"] if answer["error"] else answer["response"]["body"].get("error", {}).get("code")
        for answer in answers
    ]
    assert told == [
        None,
        *["invalid_line"] * 2,
        "model_not_found",
        "stream_not_supported",
        "unknown_url",
        "invalid_url",
        *[None] * 2,
    ]
    texts = [answers[place]["response"]["body"]["choices"][0]["message"]["content"] for place in (0, 7, 8)]
    assert texts == [reference.chat(question, 24)[0] for question in questions[:3]]


@pytest.mark.long  # beside those that ask a server
def test_a_model_of_its_own(questions: list[str], reference: Reference, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [chat("one", questions[0], max_tokens=24)])
    done = end(start(None, "-i", source, "-o", output, "--model", DEMO, "--device", "cpu"))
    assert done.startswith("1 lines: 1 answered, 0 failed")
    (answer,) = read(output)
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == reference.chat(questions[0], 24)[0]
    assert answer["response"]["status_code"] == 200 and answer["error"] is None


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.jsonl"
    write(source, [completion(0)])
    for arguments, sentence in [
        (["-i", source, "-o", tmp_path / "out"], "give one of --model, --base-url and --ray-address"),
        (
            ["-i", tmp_path / "none", "-o", tmp_path / "out", "--base-url", "http://127.0.0.1:1"],
            "there is no such file",
        ),
        (["-i", "nowhere://x", "-o", tmp_path / "out", "--base-url", "http://127.0.0.1:1"], "not a place for files"),
    ]:
        status, errors = main(["run-batch", *map(str, arguments)]), capsys.readouterr().err
        assert (status, sentence in errors) == (2, True), errors
