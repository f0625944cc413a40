"""Answers of a form, by the real `openai` client: whole, streamed, and while processes are
killed.
"""

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

from tests.end_to_end.chaos.processes import SERVING, find
from tests.end_to_end.conftest import Server
from tests.end_to_end.test_replica_lost import engine, wait_until_healthy

DEADLINE_SECONDS = 300.0
MESSAGES = [{"role": "user", "content": "Tell me about Ada, please."}]
HOSTILE = {"allOf": [{"type": "string", "pattern": f".*{letter}"} for letter in "abcdefghijklmnopqrstuvwxyz"]}


class Pet(pydantic.BaseModel):
    kind: Literal["cat", "dog"]
    lives: int = pydantic.Field(ge=0, le=9)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    pets: list[Pet] = pydantic.Field(max_length=3)


class Home(pydantic.BaseModel):
    name: str
    city: str


# Long enough to be interrupted.
LONG = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[a-z]{3,9}$"},
    "minItems": 60,
    "maxItems": 80,
}
AS_LONG = {"type": "json_schema", "json_schema": {"name": "words", "schema": LONG, "strict": True}}

NUMBERED = {
    "type": "structural_tag",
    "triggers": ["a"],
    "structures": [{"begin": "a[", "schema": {"enum": list(range(1, 10))}, "end": "]"}],
}


def test_parse_returns_the_clients_own_model(server: Server) -> None:
    for seed in range(3):
        answer = server.client().chat.completions.parse(
            model="demo", messages=MESSAGES, response_format=Person, temperature=1.5, seed=seed, max_tokens=200
        )
        assert isinstance(answer.choices[0].message.parsed, Person)
        assert answer.choices[0].finish_reason == "stop"


def test_what_was_told_is_in_the_answer_with_a_schema_and_without(server: Server) -> None:
    told = 'Ada is 36 years old, lives in Paris and likes blue. Answer in JSON: {"name": string, "city": string}'
    asked: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": told}], "temperature": 0}
    completions = server.client().chat.completions
    for answer in (completions.create(**asked), completions.parse(**asked, response_format=Home)):
        assert Home.model_validate_json(answer.choices[0].message.content) == Home(name="Ada", city="Paris")


@pytest.mark.parametrize(
    ("fields", "is_right"),
    [
        (
            {"response_format": {"type": "json_object"}, "max_tokens": 400},
            lambda text: json.loads(text)["name"],
        ),
        ({"extra_body": {"structured_outputs": {"choice": ["red", "blue"]}}}, lambda text: text in ("red", "blue")),
        ({"extra_body": {"guided_regex": "[0-9]{4}"}}, lambda text: len(text) == 4 and text.isdigit()),
        ({"extra_body": {"guided_grammar": 'root ::= "a" | "b" root'}}, lambda text: set(text) <= {"a", "b"}),
        (
            {"response_format": NUMBERED},  # every "a" begins a part
            lambda text: "a[" in text and "a" not in re.sub(r"a\[[1-9]\]", "", text),
        ),
    ],
)
def test_whole_and_streamed_answers_are_the_same(
    server: Server, fields: dict[str, Any], is_right: Callable[[str], bool]
) -> None:
    asked = {"model": "demo", "messages": MESSAGES, "temperature": 1.0, "seed": 4} | fields
    answer = server.client().chat.completions.create(**asked)
    text = answer.choices[0].message.content
    assert is_right(text)
    chunks = list(server.client().chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("schema", "code"),
    [({"type": "strin"}, "invalid_json_schema"), (HOSTILE, "schema_too_complex")],
)
def test_a_bad_schema_gets_400(server: Server, schema: Any, code: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "bad", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().chat.completions.create(model="demo", messages=MESSAGES, response_format=wanted)  # type: ignore[arg-type]
    assert (refused.value.param, refused.value.code) == ("response_format.json_schema.schema", code)


def test_the_handle_takes_the_same_fields(server: Server) -> None:
    for asked in ({"response_format": AS_LONG}, {"structured_outputs": {"json": LONG}}):
        answer = server.handle.chat.remote({"messages": MESSAGES, "max_tokens": 1500, **asked}).result()
        assert answer["error"] is None
        jsonschema.validate(json.loads(answer["outputs"][0]["text"]), LONG)


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> list[str]:
    return said_by(server, lambda: None)


@pytest.mark.long  # else: tests/end_to_end/test_every_kind.py
def test_a_stream_outlives_a_worker(server: Server, undisturbed: list[str]) -> None:
    assert said_by(server, lambda: os.kill(find(SERVING)[0], signal.SIGKILL)) == undisturbed


@pytest.mark.long  # else: tests/end_to_end/test_every_kind.py
def test_a_stream_outlives_its_engine_replica(server: Server, undisturbed: list[str]) -> None:
    pid = engine(server)["pid"]
    assert said_by(server, lambda: os.kill(pid, signal.SIGKILL)) == undisturbed
    wait_until_healthy(server)


def said_by(server: Server, disturb: Callable[[], object]) -> list[str]:
    """Two choices, whole and of the schema; `disturb` has its cause once the stream has begun."""
    texts, reasons = ["", ""], set()
    stream = server.client(timeout=DEADLINE_SECONDS).chat.completions.create(
        model="demo",
        messages=MESSAGES,  # type: ignore[arg-type]
        response_format=AS_LONG,  # type: ignore[arg-type]
        temperature=1.2,
        seed=5,
        n=2,
        max_tokens=1500,
        stream=True,
    )
    for number, chunk in enumerate(stream):
        if number == 20:
            disturbing = threading.Thread(target=disturb)
            disturbing.start()
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons.add(choice.finish_reason)
    disturbing.join()
    assert reasons == {None, "stop"}
    for text in texts:
        jsonschema.validate(json.loads(text), LONG)
    return texts
