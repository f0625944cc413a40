"""Every answer, event and error of every route, as the types of the package `openai` have them (of
`anthropic` on its routes): no field is missing, none has another type, and those beside them are
the ones that docs/api.md names.
"""

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai.types as types
import pytest
from anthropic.types import ErrorResponse, Message, MessageTokensCount, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.create_embedding_response import Usage
from openai.types.responses import InputTokenCountResponse, Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import BaseModel, TypeAdapter, ValidationError

from tests.end_to_end.conftest import Server
from tests.end_to_end.test_messages import OURS as MESSAGES
from tests.end_to_end.test_responses import OURS as RESPONSES
from tests.strict_types import parsed

API = Path(__file__).resolve().parents[2] / "docs" / "api.md"
ROW = re.compile(r"^\| `(?P<type>\w+)` \| (?P<fields>`.*`) \|$", re.MULTILINE)
BATCH_SECONDS = 300.0

QUESTION = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, "max_tokens": 16}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
TOOL = {"type": "function", "function": {name: FUNCTION[name] for name in ("name", "parameters")}}
CHATS: list[dict[str, Any]] = [
    {},
    {"n": 2, "temperature": 1, "seed": 1},
    {"logprobs": True, "top_logprobs": 2, "stop": ["4"]},
    {"tools": [TOOL], "tool_choice": "required", "max_tokens": 64},
    {"response_format": {"type": "json_object"}},
    {"prompt_logprobs": 1, "unknown_field": 1},
]
COMPLETIONS: list[dict[str, Any]] = [
    {},
    {"prompt": ["one", "two"], "n": 2, "seed": 1},
    {"logprobs": 2, "stop_token_ids": [5]},
    {"prompt_logprobs": 1, "unknown_field": 1},
]
# Null where the package's types have none, as in OpenAI's own answers: what is not known yet, and
# the first token of a prompt, which nothing predicted.
NULLS = {"Completion": re.compile(r"choices\.\d+\.(finish_reason|logprobs\.(token_logprobs|top_logprobs)\.0)")}
# Said only by models that think, as the demo model does not; see
# tests/cluster/api/responses/test_chat_message.py.
UNSAID = {
    (kind, f"choices[].{part}.{name}")
    for kind, part in (("ChatCompletion", "message"), ("ChatCompletionChunk", "delta"))
    for name in ("reasoning", "reasoning_content")
} | {("CreateEmbeddingResponse", "weights_version")}  # of weights that a trainer gave


class Page(BaseModel):
    """What the package's cursor pages read of a list."""

    data: list[Any]
    has_more: bool
    object: str
    first_id: str | None
    last_id: str | None


class Base64Embedding(BaseModel):
    """The package decodes these itself."""

    embedding: str
    index: int
    object: str


class Base64Embeddings(BaseModel):
    data: list[Base64Embedding]
    model: str
    object: str
    usage: Usage


class ErrorBody(BaseModel):
    error: ErrorObject


class Said(NamedTuple):
    """An answer, or a part of one; `type` None: the package has none for it."""

    type: Any
    data: Any


class Asker:
    """A client that takes nothing for granted."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._http.request(method, path, **options)

    def json(self, type_: Any, method: str, path: str, **options: Any) -> Said:
        answer = self.ask(method, path, **options)
        assert answer.status_code == 200, (path, answer.text)
        return Said(type_, answer.json())

    def error(self, method: str, path: str, **options: Any) -> Said:
        answer = self.ask(method, path, **options)
        assert answer.status_code >= 400, (method, path, answer.text)
        return Said(ErrorBody, answer.json())

    def events(self, type_: Any, path: str, body: dict[str, Any]) -> Iterator[Said]:
        text = self.ask("POST", path, json=body | {"stream": True}).text
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]", text[:500]
        yield from (Said(type_, json.loads(event)) for event in events[:-1])

    def broken_stream(self, path: str, body: dict[str, Any]) -> str:
        """What comes of a stream whose time is over, and whose connection is closed after the
        error. One that had not begun by then is refused, and gets twice the time.
        """
        parts: list[str] = []
        with self._http.stream("POST", path, json=body | {"stream": True}) as answer:
            if answer.status_code == 504:
                return self.broken_stream(path, body | {"timeout": 2 * body["timeout"]})
            with pytest.raises(httpx.RemoteProtocolError):
                parts.extend(answer.iter_text())  # keeps what came before the end
        return "".join(parts)


Walk = Callable[[Asker], Iterator[Said]]


def chat(asker: Asker) -> Iterator[Said]:
    path = "/v1/chat/completions"
    for changes in CHATS:
        yield asker.json(ChatCompletion, "POST", path, json=QUESTION | changes)
        usage = {"stream_options": {"include_usage": True}} if "n" in changes else {}
        if "prompt_logprobs" not in changes:
            yield from asker.events(ChatCompletionChunk, path, QUESTION | changes | usage)
    yield from asker.events(ChatCompletionChunk, path, QUESTION | {"unknown_field": 1, "stop": ["4"]})
    for bad in ({"messages": []}, {"temperature": 9}, {"model": "other"}, {"max_tokens": 10**6}):
        yield asker.error("POST", path, json=QUESTION | bad)
        yield asker.error("POST", path, json=QUESTION | bad | {"stream": True})
    yield asker.error("POST", path, content=b"{", headers={"content-type": "application/json"})
    yield asker.error("POST", path, content=b"{}", headers={"content-type": "text/plain"})
    yield Said(ErrorBody, json.loads(asker.broken_stream(path, QUESTION | LATE).split("data: ")[-1]))


LATE = {"timeout": 0.3, "max_tokens": 1900, "ignore_eos": True}


def completions(asker: Asker) -> Iterator[Said]:
    path, plain = "/v1/completions", {"prompt": "one two", "max_tokens": 6, "temperature": 0}
    for changes in COMPLETIONS:
        yield asker.json(types.Completion, "POST", path, json=plain | changes)
        usage = {"stream_options": {"include_usage": True}} if "n" in changes else {}
        if "prompt_logprobs" not in changes:
            yield from asker.events(types.Completion, path, plain | changes | usage)
    yield asker.json(types.Completion, "POST", path, json=plain | {"echo": True, "logprobs": 1})
    for bad in ({"prompt": []}, {"suffix": "x"}, {"logprobs": 99}):
        yield asker.error("POST", path, json=plain | bad)
    yield asker.error("POST", path, json={"prompt": "one"} | LATE)


def embeddings(asker: Asker) -> Iterator[Said]:
    path = "/v1/embeddings"
    for changes in ({"input": "one"}, {"input": ["one", "two"], "dimensions": 8}, {"input": [[1, 2], [3]]}):
        yield asker.json(types.CreateEmbeddingResponse, "POST", path, json={"encoding_format": "float"} | changes)
    yield asker.json(Base64Embeddings, "POST", path, json={"input": "one", "encoding_format": "base64"})
    for bad in ({"input": []}, {"input": "one", "dimensions": 0}):
        yield asker.error("POST", path, json=bad)


def pairs(path: str, body: dict[str, Any]) -> Walk:
    """A route that OpenAI does not have."""

    def walk(asker: Asker) -> Iterator[Said]:
        answer = asker.ask("POST", path, json=body)
        yield Said(dict[str, Any], answer.json()) if answer.status_code == 200 else Said(ErrorBody, answer.json())
        yield asker.error("POST", path, json={})

    return walk


def responses(asker: Asker) -> Iterator[Said]:
    """Fields of ours: those of tests/end_to_end/test_responses.py."""
    path, plain = "/v1/responses", {"input": "What is 17 + 25?", "max_output_tokens": 16}
    call = {"tools": [FUNCTION], "tool_choice": "required", "max_output_tokens": 64}
    for changes in ({}, call, {"text": {"format": {"type": "json_object"}}}):
        parsed(Response, asker.ask("POST", path, json=plain | changes).json(), *RESPONSES)
        for event in asker.ask("POST", path, json=plain | changes | {"stream": True}).text.split("\n\n"):
            if event:
                parsed(ResponseStreamEvent, json.loads(event.partition("data: ")[2]), *RESPONSES)
    yield asker.error("POST", path, json=plain | {"temperature": 9})


def counted_input(asker: Asker) -> Iterator[Said]:
    path = "/v1/responses/input_tokens"
    parsed(InputTokenCountResponse, asker.ask("POST", path, json={"input": "one"}).json())
    yield asker.error("POST", path, json={})


def one_response(asker: Asker) -> Iterator[Said]:
    made = asker.ask("POST", "/v1/responses", json={"input": "one", "max_output_tokens": 16}).json()
    parsed(Response, asker.ask("GET", f"/v1/responses/{made['id']}").json(), *RESPONSES)
    yield asker.error("GET", "/v1/responses/resp_none")


def no_response(asker: Asker) -> Iterator[Said]:
    made = asker.ask("POST", "/v1/responses", json={"input": "one", "max_output_tokens": 16}).json()
    assert asker.ask("DELETE", f"/v1/responses/{made['id']}").status_code == 200
    yield asker.error("DELETE", f"/v1/responses/{made['id']}")


def messages(asker: Asker) -> Iterator[Said]:
    """Fields of ours: those of tests/end_to_end/test_messages.py."""
    path, plain = "/v1/messages", {"model": "demo", "messages": QUESTION["messages"], "max_tokens": 64}
    call = {"tools": [{"name": "add", "input_schema": FUNCTION["parameters"]}], "tool_choice": {"type": "any"}}
    for changes in ({}, call):
        parsed(Message, asker.ask("POST", path, json=plain | changes).json(), *MESSAGES)
        for event in asker.ask("POST", path, json=plain | changes | {"stream": True}).text.split("\n\n"):
            if event and not event.startswith("event: ping"):
                parsed(RawMessageStreamEvent, json.loads(event.partition("data: ")[2]), *MESSAGES)
    for bad in ({"max_tokens": 0}, {"messages": []}):
        parsed(ErrorResponse, asker.ask("POST", path, json=plain | bad).json(), "param", "code")
    yield from ()


def counted(asker: Asker) -> Iterator[Said]:
    path, plain = "/v1/messages/count_tokens", {"model": "demo", "messages": QUESTION["messages"]}
    parsed(MessageTokensCount, asker.ask("POST", path, json=plain).json())
    parsed(ErrorResponse, asker.ask("POST", path, json={}).json(), "param", "code")
    yield from ()


def models(asker: Asker) -> Iterator[Said]:
    listed = asker.ask("GET", "/v1/models").json()
    assert listed.keys() == {"object", "data"} and listed["object"] == "list"
    yield from (Said(types.Model, each) for each in listed["data"])
    yield asker.error("POST", "/v1/models")


def one_model(asker: Asker) -> Iterator[Said]:
    yield asker.json(types.Model, "GET", "/v1/models/demo")
    yield asker.error("GET", "/v1/models/other")


def adapter(verb: str) -> Walk:
    """Their answers are a line of text."""

    def walk(asker: Asker) -> Iterator[Said]:
        yield asker.error("POST", f"/v1/{verb}_lora_adapter", json={"lora_name": "none", "lora_path": "/none"})
        yield asker.error("POST", f"/v1/{verb}_lora_adapter", json={})

    return walk


def upload(asker: Asker) -> dict[str, Any]:
    body = {"model": "demo", "prompt": "one", "max_tokens": 2}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    files = {"file": ("in.jsonl", io.BytesIO(json.dumps(line).encode()))}
    made: dict[str, Any] = asker.ask("POST", "/v1/files", files=files, data={"purpose": "batch"}).json()
    return made


def new_file(asker: Asker) -> Iterator[Said]:
    yield Said(types.FileObject, upload(asker))
    yield asker.error("POST", "/v1/files", json={})
    yield asker.error("POST", "/v1/files", data={"purpose": "batch"}, files={"other": b"x"})


def files(asker: Asker) -> Iterator[Said]:
    upload(asker)
    yield from page(asker, "/v1/files", types.FileObject)


def page(asker: Asker, path: str, type_: Any) -> Iterator[Said]:
    found = asker.json(Page, "GET", path, params={"limit": 1})
    yield found
    yield from (Said(type_, each) for each in found.data["data"])
    yield asker.error("GET", path, params={"limit": 0})


def one_file(asker: Asker) -> Iterator[Said]:
    yield asker.json(types.FileObject, "GET", f"/v1/files/{upload(asker)['id']}")
    yield asker.error("GET", "/v1/files/file-none")


def no_file(asker: Asker) -> Iterator[Said]:
    yield asker.json(types.FileDeleted, "DELETE", f"/v1/files/{upload(asker)['id']}")
    yield asker.error("DELETE", "/v1/files/file-none")


def content(asker: Asker) -> Iterator[Said]:
    made = upload(asker)
    assert len(asker.ask("GET", f"/v1/files/{made['id']}/content").content) == made["bytes"]
    yield asker.error("GET", "/v1/files/file-none/content")


def create(asker: Asker) -> dict[str, Any]:
    asked = {"input_file_id": upload(asker)["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    made: dict[str, Any] = asker.ask("POST", "/v1/batches", json=asked | {"metadata": {"a": "b"}}).json()
    return made


def new_batch(asker: Asker) -> Iterator[Said]:
    yield Said(types.Batch, create(asker))
    yield asker.error("POST", "/v1/batches", json={})


def batches(asker: Asker) -> Iterator[Said]:
    create(asker)
    yield from page(asker, "/v1/batches", types.Batch)


def one_batch(asker: Asker) -> Iterator[Said]:
    made, deadline = create(asker), time.monotonic() + BATCH_SECONDS
    while made["status"] != "completed":
        assert time.monotonic() < deadline, made
        time.sleep(0.05)
        made = asker.ask("GET", f"/v1/batches/{made['id']}").json()
        yield Said(types.Batch, made)
    line = json.loads(asker.ask("GET", f"/v1/files/{made['output_file_id']}/content").text)
    yield Said(types.Completion, line["response"]["body"])
    yield asker.error("GET", "/v1/batches/batch_none")


def cancel(asker: Asker) -> Iterator[Said]:
    yield asker.json(types.Batch, "POST", f"/v1/batches/{create(asker)['id']}/cancel")
    yield asker.error("POST", "/v1/batches/batch_none/cancel")


def ours(path: str, wrong_method: str = "POST") -> Walk:
    """A route that OpenAI does not have: its errors are in OpenAI's form, too."""

    def walk(asker: Asker) -> Iterator[Said]:
        assert asker.ask("GET", path).status_code == 200
        yield asker.error(wrong_method, path)

    return walk


def why(asker: Asker) -> Iterator[Said]:
    yield asker.error("GET", "/debug/why/unknown")


def page_file(asker: Asker) -> Iterator[Said]:
    assert asker.ask("GET", "/page/main.js").status_code == 200
    yield asker.error("GET", "/page/none.js")


WALKS: dict[tuple[str, str], Walk] = {
    ("/v1/chat/completions", "post"): chat,
    ("/v1/completions", "post"): completions,
    ("/v1/embeddings", "post"): embeddings,
    **{(path, "post"): pairs(path, {"text_1": "one", "text_2": ["two"]}) for path in ("/score", "/v1/score")},
    **{
        (path, "post"): pairs(path, {"query": "one", "documents": ["two"]})
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    },
    ("/v1/responses", "post"): responses,
    ("/v1/responses/input_tokens", "post"): counted_input,
    ("/v1/responses/{response_id}", "get"): one_response,
    ("/v1/responses/{response_id}", "delete"): no_response,
    ("/v1/messages", "post"): messages,
    ("/v1/messages/count_tokens", "post"): counted,
    ("/tokenize", "post"): pairs("/tokenize", {"prompt": "one"}),
    ("/detokenize", "post"): pairs("/detokenize", {"tokens": [1, 2]}),
    ("/v1/models", "get"): models,
    ("/v1/models/{model_id}", "get"): one_model,
    **{(f"/v1/{verb}_lora_adapter", "post"): adapter(verb) for verb in ("load", "unload")},
    ("/v1/files", "post"): new_file,
    ("/v1/files", "get"): files,
    ("/v1/files/{file_id}", "get"): one_file,
    ("/v1/files/{file_id}", "delete"): no_file,
    ("/v1/files/{file_id}/content", "get"): content,
    ("/v1/batches", "post"): new_batch,
    ("/v1/batches", "get"): batches,
    ("/v1/batches/{batch_id}", "get"): one_batch,
    ("/v1/batches/{batch_id}/cancel", "post"): cancel,
    ("/debug/why/{request_id}", "get"): why,
    ("/page/{file}", "get"): page_file,
    **{
        (path, "get"): ours(path)
        for path in (
            *("/", "/health", "/ping", "/health/deep", "/metrics", "/version", "/tokenizer_info"),
            *("/debug/engines", "/debug/trace", "/debug/view"),
        )
    },
}


def problems(said: Said) -> list[str]:
    """What a strict reader has to say of an answer."""
    try:
        TypeAdapter(said.type).validate_json(json.dumps(said.data), strict=True)
    except ValidationError as error:
        known = NULLS.get(said.type.__name__)
        return [
            f"{said.type.__name__}: {place}: {each['msg']}, got {str(each['input'])[:60]}"
            for each in error.errors()
            if not known or each["input"] is not None or not known.fullmatch(place_of(each["loc"]))
            for place in [place_of(each["loc"])]
        ]
    return []


def place_of(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location))


def extras(value: Any, path: str = "") -> Iterator[str]:
    """Paths of fields that a model's type does not have."""
    if isinstance(value, BaseModel):
        for name, part in value:
            here = f"{path}.{name}" if path else name
            if name in (value.model_extra or {}):
                yield here
            else:
                yield from extras(part, here)
    elif isinstance(value, list):
        for part in value:
            yield from extras(part, f"{path}[]")
    elif isinstance(value, dict):
        for part in value.values():
            yield from extras(part, path)


def without_known_nulls(said: Said) -> Any:
    """The answer with something in place of its allowed nulls, so that it can be read."""
    data = json.loads(json.dumps(said.data))
    if said.type is types.Completion:
        for choice in data["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
            choice["logprobs"] = None
    return data


@pytest.fixture(scope="module")
def walked(server: Server) -> list[Said]:
    with httpx.Client(base_url=server.url, timeout=BATCH_SECONDS) as http:
        asker = Asker(http)
        paths = asker.ask("GET", "/openapi.json").json()["paths"]
        routes = {(path, method) for path, item in paths.items() for method in item}
        assert routes - WALKS.keys() == set(), "routes without a walk"
        return [said for route in sorted(routes) for said in WALKS[route](asker)]


def test_every_answer_has_the_packages_types(walked: list[Said]) -> None:
    assert sorted({problem for said in walked for problem in problems(said)}) == []


def test_fields_of_ours_are_those_that_are_documented(walked: list[Said]) -> None:
    found = {
        (said.type.__name__, place)
        for said in walked
        for place in extras(TypeAdapter(said.type).validate_python(without_known_nulls(said)))
    }
    named = {
        (row["type"], field)
        for row in ROW.finditer(API.read_text(encoding="utf-8"))
        for field in re.findall("`([^`]+)`", row["fields"])
    }
    assert found - named == set(), "fields that docs/api.md does not name"
    assert named - found == UNSAID


def test_what_is_wrong_is_seen() -> None:
    model: dict[str, Any] = {"id": "a", "created": 1, "object": "model", "owned_by": "us"}
    assert problems(Said(types.Model, model)) == []
    assert problems(Said(types.Model, {**model, "created": "1"}))
    assert problems(Said(types.Model, {key: value for key, value in model.items() if key != "owned_by"}))
    assert list(extras(types.Model.model_validate(model | {"more": {"a": 1}}))) == ["more"]
    choice = {"index": 0, "text": "x", "finish_reason": None}
    whole = {"id": "a", "created": 1, "model": "m", "object": "text_completion", "choices": [choice]}
    assert problems(Said(types.Completion, whole)) == []
    assert problems(Said(types.Completion, {**whole, "choices": [{**choice, "text": None}]}))
