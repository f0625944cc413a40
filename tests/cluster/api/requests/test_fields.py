"""What `docs/fields.md` says of each field, by sending it: every row, to both routes."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from cluster.api.requests.protocol import ChatRequest, CompletionRequest
from engine.request import Request
from tests.cluster.api.scripted import MODEL, Running, Script, running

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PAGE = Path(__file__).parents[4] / "docs" / "fields.md"
CELL = re.compile(r"(?<!\\)\|")
NEEDED = {"model", "messages", "prompt"}
ASKED = {"role": "user", "content": "Hello?"}
THOUGHT = ["<think>", "hm", "</think>", "Hello"]


class Row(NamedTuple):
    path: str
    name: str  # of the field
    sent: dict[str, Any]
    effect: str
    note: str


def rows() -> Iterator[Row]:
    """Of the page's first tables, each for both routes."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in CELL.split(line)[1:-1]]
        if len(cells) == 5 and cells[0].startswith("`"):
            name, value = cells[0].strip("`"), json.loads(cells[1].strip("`"))
            is_whole = isinstance(value, dict) and next(iter(value), None) == name
            sent = value if is_whole else {name: value}
            of_completions = {key: each for key, each in sent.items() if key != "messages"}
            if "logprobs" in sent and name != "logprobs":  # which is a number there
                of_completions["logprobs"] = 1
            for path, fields, effect in ((CHAT, sent, cells[2]), (COMPLETIONS, of_completions, cells[3])):
                alone = {name: fields[name]}
                yield Row(path, name, alone if effect == "unknown" else fields, effect, cells[4])


def messages() -> Iterator[tuple[dict[str, Any], str, str]]:
    """Of the table of messages: a message, whether it works, and why not."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith('`{"role"'):
            yield json.loads(cells[0].strip("`")), cells[1], cells[2]


@pytest.fixture(scope="module")
def thinking() -> Iterator[Running]:
    """A server whose model has tools, and reasons."""
    with running(model={"tool_format": "hermes", "reasoning_ids": (5, 6)}) as server:
        for said in ("Hello?", "It is"):
            server.service.scripts[said] = Script(THOUGHT)
        yield server


def ask(server: Running, path: str, fields: dict[str, Any]) -> tuple[httpx.Response, list[Request]]:
    """The answer, and what the engines were asked for."""
    good = {"messages": [ASKED]} if path == CHAT else {"prompt": "Hello?"}
    server.service.generated.clear()
    answer = httpx.post(f"{server.url}{path}", json=good | {"model": MODEL} | fields, timeout=60)
    return answer, [replace(request, id="") for request in server.service.generated]


def told(answer: httpx.Response) -> str:
    """Without what differs between two requests."""
    return re.sub(r'"(id|created)":("[^"]*"|\d+)', "", answer.text)


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"{row.path.split('/')[2]}-{row.name}-{row.effect}")
def test_a_field_does_what_the_page_says(thinking: Running, row: Row) -> None:
    answer, requests = ask(thinking, row.path, row.sent)
    if row.effect == "refused":
        error = answer.json()["error"]
        assert (answer.status_code, requests) == (400, [])
        assert error["param"].partition("[")[0] == row.name
        assert row.note.rpartition("Chat: ")[2] in error["message"] or error["code"] == "invalid_type"
        return
    assert answer.status_code == 200, answer.text
    assert ("ignored: unknown field" in answer.text) == (row.effect == "unknown")
    if row.effect == "ignored":
        assert answer.json()["warnings"] == [f"ignored: '{row.name}' has no effect: {row.note}"]
        assert requests == ask(thinking, row.path, {})[1]
        return
    without = {name: value for name, value in row.sent.items() if name != row.name}
    other, other_requests = ask(thinking, row.path, without)
    changes = (requests, told(answer)) != (other_requests, told(other))
    assert changes == (row.effect != "no effect"), row.effect


@pytest.mark.parametrize(("message", "effect", "why"), list(messages()), ids=lambda case: str(case)[:50])
def test_a_message_is_taken_as_the_page_says(thinking: Running, message: dict[str, Any], effect: str, why: str) -> None:
    answer, _ = ask(thinking, CHAT, {"messages": [ASKED, message]})
    if effect == "works":
        assert (answer.status_code, answer.headers.get("warning")) == (200, None), answer.text
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"].startswith("messages[1].")) == (400, True)
        assert why in error["message"]


@pytest.mark.parametrize(("path", "kind"), [(CHAT, ChatRequest), (COMPLETIONS, CompletionRequest)])
def test_every_field_has_a_row(path: str, kind: type[ChatRequest] | type[CompletionRequest]) -> None:
    on_page = {row.name for row in rows() if row.path == path and row.effect != "unknown"}
    assert on_page == kind.model_fields.keys() - NEEDED
