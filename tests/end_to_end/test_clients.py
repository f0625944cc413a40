"""Clients that applications use, against the whole system: `langchain-openai`, and `litellm` in an
environment of its own, since it wants an older `openai`.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.cluster.api.scripted import MODEL, Script, running
from tests.end_to_end.conftest import Server

LITELLM = Path(sys.prefix) / "litellm" / "bin" / "python"
needs_litellm = pytest.mark.skipif(not LITELLM.exists(), reason="no litellm here: .ci/litellm FOLDER installs it")
JOB = """
import json, os, sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network at its import
import litellm

base_url, model = sys.argv[1:3]
told = []
for asked in map(json.loads, sys.argv[3:]):
    try:
        answer = litellm.completion(model=f"openai/{model}", api_base=base_url, api_key="none", num_retries=0, **asked)
    except litellm.BadRequestError as error:
        told.append(type(error).__name__)
        continue
    if asked.get("stream"):
        answer = litellm.stream_chunk_builder(list(answer))
    told.append(answer.choices[0].model_dump())
print(json.dumps(told))
"""
SECONDS = 300
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "integer", "minimum": 0, "maximum": 99} for name in "ab"},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ADD = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
LONG = "word " * 3000
TOLD = 'Ada is 36 years old, lives in Paris and likes blue. Answer in JSON: {"name": string, "age": integer}'


class Person(BaseModel):
    """Of whom something was told."""

    name: str = Field(max_length=9)
    age: int = Field(ge=0, le=99)


@tool
def add(a: Annotated[int, Field(ge=0, le=99)], b: Annotated[int, Field(ge=0, le=99)]) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def chat(server: Server) -> Iterator[ChatOpenAI]:
    options = {"model": "demo", "base_url": f"{server.url}/v1", "api_key": "none", "temperature": 0}
    with httpx.Client(timeout=SECONDS) as http:
        yield ChatOpenAI(**options, max_retries=0, timeout=SECONDS, http_client=http)


def test_langchain_chats(chat: ChatOpenAI) -> None:
    assert chat.invoke("What is 17 + 25?").content == "42"
    pieces = [chunk.content for chunk in chat.stream("Count from 3 to 9.")]
    assert "".join(pieces) == "3, 4, 5, 6, 7, 8, 9" and len(pieces) > 3
    assert [answer.content for answer in chat.batch(["What is 2 + 2?", 'Spell "cat".'])] == ["4", "c-a-t"]


def test_langchain_knows_a_prompt_that_is_too_long(chat: ChatOpenAI) -> None:
    with pytest.raises(ContextOverflowError):
        chat.invoke(LONG)


def test_langchain_calls_a_tool_and_goes_on_with_its_result(chat: ChatOpenAI) -> None:
    able = chat.bind_tools([add])
    asked = HumanMessage("What is 57 + 68?")
    answer = able.invoke([asked])
    first, *rest = able.stream([asked])
    streamed = first
    for chunk in rest:
        streamed += chunk
    for told in (answer, streamed):
        assert [(call["name"], call["args"]) for call in told.tool_calls] == [("add", {"a": 57, "b": 68})]
    result = add.invoke(answer.tool_calls[0])
    assert able.invoke([asked, answer, result]).content == "The sum is 125."
    assert able.invoke('Spell "cat".').content == "c-a-t"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gets_a_structured_answer(chat: ChatOpenAI, method: Any) -> None:
    got = chat.with_structured_output(Person, method=method).invoke(TOLD)
    assert isinstance(got, Person)
    assert method == "function_calling" or got == Person(name="Ada", age=36)


@needs_litellm
def test_litellm_chats_calls_and_fills_a_schema(server: Server) -> None:
    asked = {"messages": [{"role": "user", "content": "What is 57 + 68?"}], "temperature": 0, "tools": [ADD]}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema()}}
    chat, streamed, call, streamed_call, person = litellm(
        server.url,
        "demo",
        {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0},
        {"messages": [{"role": "user", "content": "Count from 3 to 9."}], "temperature": 0, "stream": True},
        asked,
        asked | {"stream": True},
        {"messages": [{"role": "user", "content": TOLD}], "temperature": 0, "response_format": form},
    )
    assert (chat["message"]["content"], chat["finish_reason"]) == ("42", "stop")
    assert streamed["message"]["content"] == "3, 4, 5, 6, 7, 8, 9"
    for told in (call, streamed_call):
        [made] = told["message"]["tool_calls"]
        assert told["finish_reason"] == "tool_calls"
        assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == ("add", {"a": 57, "b": 68})
    assert json.loads(person["message"]["content"]) == {"name": "Ada", "age": 36}


@needs_litellm
def test_litellm_knows_a_prompt_that_is_too_long(server: Server) -> None:
    """By which its router falls back to another model."""
    messages = [{"role": "user", "content": LONG}]
    assert litellm(server.url, "demo", {"messages": messages}) == ["ContextWindowExceededError"]


@needs_litellm
def test_litellm_finds_the_reasoning() -> None:
    asked = {"messages": [{"role": "user", "content": "think"}]}
    with running(model={"reasoning_ids": (1, 2)}) as server:
        server.service.scripts["think"] = Script(["<think>", "\nSun", "?\n", "</think>", "\n\n", "Rain."])
        whole, streamed = litellm(server.url, MODEL, asked, asked | {"stream": True})
    for told in (whole, streamed):
        assert (told["message"]["reasoning_content"], told["message"]["content"]) == ("Sun?", "Rain.")


def litellm(url: str, model: str, *asked: dict[str, Any]) -> list[Any]:
    """The first choice of each answer, or the error's class."""
    command = [LITELLM, "-c", JOB, f"{url}/v1", model, *map(json.dumps, asked)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, ended.stderr[-2000:]
    told: list[Any] = json.loads(ended.stdout.splitlines()[-1])
    return told
