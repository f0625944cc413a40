"""The Messages API by the real `anthropic` client: whole, streamed, and while processes are
killed.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import httpx2
import jsonschema
import pytest
from anthropic.types import Message, RawMessageStreamEvent

from tests.end_to_end.chaos.processes import GATEWAY, SERVING, find
from tests.end_to_end.conftest import Reference, Server
from tests.end_to_end.test_replica_lost import engine, wait_until_healthy
from tests.end_to_end.test_responses import SCHEMA
from tests.strict_types import parsed

DEADLINE_SECONDS = 300.0
OURS = ("system_fingerprint", "weights_version", "warnings")
CALL: dict[str, Any] = {
    "model": "demo",
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "Sort some words."}],
    "tools": [{"name": "sort_words", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "sort_words"},
    "max_tokens": 400,
    "extra_body": {"seed": 3, "temperature": 1.2},
}
TEXT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What is 3 + 4?"}],
    "max_tokens": 200,
    "extra_body": {"seed": 3, "ignore_eos": True},
}


def client_of(server: Server) -> anthropic.Anthropic:
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=DEADLINE_SECONDS)
    return server.clients.enter_context(client)


def test_answers_as_chat_does(server: Server, reference: Reference, questions: list[str]) -> None:
    asked = {"model": "demo", "messages": [{"role": "user", "content": questions[0]}], "max_tokens": 64}
    sent = httpx.post(f"{server.url}/v1/messages", json=asked | {"temperature": 0}, timeout=DEADLINE_SECONDS).json()
    message = parsed(Message, sent, *OURS)
    text, reason = reference.chat(questions[0], 64)
    assert message.content[0].text == text
    assert message.stop_reason == {"stop": "end_turn", "length": "max_tokens"}[reason]
    client = client_of(server)
    with client.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
        assert stream.get_final_text() == text
    assert client.messages.create(**asked)._request_id
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**asked | {"model": "other"})
    assert caught.value.request_id == caught.value.body["request_id"] is not None
    counted = client.messages.count_tokens(model="demo", messages=asked["messages"])
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


@pytest.mark.long  # else: tests/end_to_end/test_every_kind.py
def test_whole_and_streamed_answers_are_the_same_whoever_is_killed(server: Server) -> None:
    whole = shown(client_of(server).messages.create(**CALL))
    jsonschema.validate(whole[1][0]["input"], SCHEMA)
    assert streamed(server, {}) == whole
    pid = engine(server)["pid"]
    kills = {10: lambda: os.kill(find(SERVING)[0], signal.SIGKILL), 60: lambda: os.kill(pid, signal.SIGKILL)}
    assert streamed(server, kills) == whole
    wait_until_healthy(server)


def streamed(server: Server, disturb: dict[int, Callable[[], object]]) -> Any:
    """What the client's stream adds up to. `disturb`: what is done after so many events."""
    with client_of(server).messages.stream(**CALL) as stream:
        for number, event in enumerate(stream):
            if event.type in ("content_block_start", "content_block_delta"):
                parsed(RawMessageStreamEvent, event.to_dict())
            disturb.get(number, lambda: None)()
        assert number > max(disturb, default=0)
        return shown(stream.get_final_message())


def shown(message: Message) -> Any:
    """What of an answer follows from its request."""
    content = [block.model_dump(exclude={"id", "parsed_output"}, exclude_none=True) for block in message.content]
    return message.stop_reason, content, message.usage.output_tokens


def test_a_lost_gateway_is_no_clean_end(server: Server) -> None:
    """In the midst of an answer that is far from its end, however late the client reads it."""
    kinds = []
    asked = TEXT | {"max_tokens": 1900}
    with client_of(server) as client, pytest.raises((anthropic.APIError, httpx2.TransportError)):
        for event in client.messages.create(**asked, stream=True):
            kinds.append(event.type)
            if len(kinds) == 20:
                os.kill(find(GATEWAY)[0], signal.SIGKILL)
    assert len(kinds) >= 20 and "message_stop" not in kinds
    wait_until_healthy(server)
