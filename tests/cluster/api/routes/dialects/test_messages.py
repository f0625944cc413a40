"""The Messages API, by the client of `anthropic` and by HTTP."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse

from cluster.api.keys.key_ring import KeyRing
from engine.errors import Overloaded
from engine.request import ChatPrompt
from tests.cluster.api.routes.dialects.said import TEXTS, events_of
from tests.cluster.api.scripted import FINGERPRINT, MAX_MODEL_LEN, MODEL, PROMPT_IDS, Running, Script, running
from tests.strict_types import parsed

OURS = ("system_fingerprint", "warnings")
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "ask"}]}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
STOPS = tuple("abcdefghijklmnop")
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


@pytest.fixture(scope="module")
def thinking_server() -> Iterator[Running]:
    with running(model={"tool_format": "hermes", "reasoning_ids": (101, 103)}) as server:
        yield server


@pytest.fixture
def thinking(thinking_server: Running) -> Running:
    thinking_server.service.generated.clear()
    thinking_server.service.scripts.clear()
    return thinking_server


_CLIENTS = ExitStack()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """All clients of a test, at its end."""
    with _CLIENTS:
        yield


def client_of(server: Running, **options: Any) -> anthropic.Anthropic:
    made = anthropic.Anthropic(base_url=server.url, max_retries=0, **{"api_key": "any", **options})
    return _CLIENTS.enter_context(made)


def test_a_text(server: Running) -> None:
    sent = httpx.post(f"{server.url}/v1/messages", json=BODY).json()
    message = parsed(Message, sent, *OURS)
    assert message.id.startswith("msg_") and message.system_fingerprint == FINGERPRINT
    assert sent["content"] == [{"type": "text", "text": "Hello, wörld"}]  # Vercel's AI SDK takes no null
    assert (message.stop_reason, message.stop_sequence, message.model) == ("end_turn", None, MODEL)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == len(PROMPT_IDS)
    assert message.usage.output_tokens == 3
    (request,) = server.service.generated
    assert request.id == message.id and request.params.max_tokens == 20


def test_the_clients_stream_adds_up_to_the_whole_answer(thinking: Running) -> None:
    thinking.service.scripts["ask"] = Script(texts=TEXTS)
    client = client_of(thinking)
    asked = BODY | {"tools": [WEATHER], "thinking": {"type": "adaptive"}}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert without_ids(streamed.model_dump(exclude_none=True)) == without_ids(whole.model_dump(exclude_none=True))
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole.content[0].thinking == "One two" and whole.content[1].text == "Let me look."
    assert [block.input for block in whole.content[2:]] == [{"city": "Bremen"}, {}]
    assert (whole.stop_reason, whole.usage.output_tokens_details.thinking_tokens) == ("tool_use", 4)
    first, second = thinking.service.generated
    assert first.prompt == second.prompt


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"id": None, "content": [block | {"id": None} for block in message["content"]]}


def test_every_event_is_of_its_type_and_in_order(thinking: Running) -> None:
    thinking.service.scripts["ask"] = Script(texts=TEXTS)
    events = events_of(
        thinking, "/v1/messages", BODY | {"tools": [WEATHER], "thinking": {"type": "adaptive"}, "unknown": 1}
    )
    assert events[1] == {"type": "ping"}
    for event in events[:1] + events[2:]:
        parsed(RawMessageStreamEvent, event, *OURS)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert events[-2]["warnings"] == ["ignored: unknown field 'unknown'"]
    open_block = None
    for event in events[2:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block = event["index"]
        assert event["index"] == open_block
        if event["type"] == "content_block_stop":
            open_block = None
    assert open_block is None and kinds.count("content_block_start") == 4


def test_a_conversation_with_tools_is_translated(thinking: Running) -> None:
    client_of(thinking).messages.create(
        model=MODEL,
        max_tokens=5,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        tools=[WEATHER | {"description": "of a city"}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "disabled"},
        stop_sequences=[*STOPS],
        extra_body={"temperature": 0.5, "top_k": 3},
        metadata={"user_id": "someone"},
        messages=[
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Köln"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "tool_result", "tool_use_id": "call_1", "is_error": True},
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
    )
    (request,) = thinking.service.generated
    assert isinstance(request.prompt, ChatPrompt)
    function = {"name": "weather", "arguments": {"city": "Köln"}}
    assert list(request.prompt.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
            "reasoning_content": "hm",
        },
        {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
        {"role": "tool", "content": "", "tool_call_id": "call_1"},
        {"role": "user", "content": "And now?"},
    ]
    described = {"name": "weather", "description": "of a city", "parameters": WEATHER["input_schema"]}
    assert request.prompt.tools == [{"type": "function", "function": described}]
    assert request.prompt.variables == {"enable_thinking": False}
    params = request.params
    assert (params.temperature, params.top_k, tuple(params.stop), params.max_tokens) == (0.5, 3, STOPS, 5)
    assert params.structured_outputs is not None


def test_a_document_is_its_text(server: Running) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Rain fell."}
    document = {"type": "document", "source": source, "citations": {"enabled": False}}
    about = document | {"title": "Weather", "context": "A report."}
    content = [about, document, {"type": "text", "text": "What fell?"}]
    client_of(server).messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": content}])
    (request,) = server.service.generated
    assert isinstance(request.prompt, ChatPrompt)
    expected = "Weather\nA report.\nRain fell.\nRain fell.\nWhat fell?"
    assert list(request.prompt.messages) == [{"role": "user", "content": expected}]


def test_an_answer_that_has_begun_is_continued(server: Running) -> None:
    messages = [*BODY["messages"], {"role": "assistant", "content": "Hell"}]
    assert httpx.post(f"{server.url}/v1/messages", json=BODY | {"messages": messages}).status_code == 200
    (request,) = server.service.generated
    assert isinstance(request.prompt, ChatPrompt) and request.prompt.continues


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        (Script(finish_reason="length"), "max_tokens", None),
        (Script(stop_reason="!"), "stop_sequence", "!"),
        (Script(stop_reason=7), "end_turn", None),
    ],
)
def test_why_it_ended(server: Running, script: Script, reason: str, sequence: str | None) -> None:
    server.service.scripts["ask"] = script
    message = client_of(server).messages.create(**BODY)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    last = events_of(server, "/v1/messages", BODY)[-2]["delta"]
    assert (last["stop_reason"], last["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "reason"),
    [
        (MAX_MODEL_LEN - len(PROMPT_IDS), 32_000, "model_context_window_exceeded"),
        (MAX_MODEL_LEN - len(PROMPT_IDS), MAX_MODEL_LEN - len(PROMPT_IDS), "max_tokens"),
        (20, 20, "max_tokens"),
    ],
)
def test_an_answer_ends_with_the_context_if_more_was_asked_for(
    server: Running, num_tokens: int, max_tokens: int, reason: str
) -> None:
    """Clients have to send `max_tokens`, and few of them know the context."""
    server.service.scripts["ask"] = Script(["x"] * num_tokens, finish_reason="length")
    asked = BODY | {"max_tokens": max_tokens}
    assert events_of(server, "/v1/messages", asked)[-2]["delta"]["stop_reason"] == reason
    message = httpx.post(f"{server.url}/v1/messages", json=asked).json()
    assert parsed(Message, message, *OURS).stop_reason == reason
    for request in server.service.generated:
        assert request.ends_with_context and request.params.max_tokens == min(max_tokens, MAX_MODEL_LEN)


def test_a_call_that_was_cut_off_has_what_there_is(thinking: Running) -> None:
    texts = ['<tool_call>\n{"name": "weather", "arguments": {"city": "Bre']
    thinking.service.scripts["ask"] = Script(texts=texts, finish_reason="length")
    message = client_of(thinking).messages.create(**BODY, tools=[WEATHER])
    assert (message.content[0].input, message.stop_reason) == ({"city": "Bre"}, "max_tokens")


def test_a_call_may_hold_half_of_a_character(thinking: Running) -> None:
    texts = ['<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo \\ud83d"}}\n</tool_call>']
    thinking.service.scripts["ask"] = Script(texts=texts)
    assert client_of(thinking).messages.create(**BODY, tools=[WEATHER]).content[0].input == {"city": "Oslo ?"}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].id"),
        ({"system": [{"type": "document"}]}, "system[0]"),
        *[
            ({"messages": [{"role": role, "content": [DOCUMENT | changes]}]}, f"messages[0].content[0]{path}")
            for role, changes, path in (
                ("assistant", {}, ""),
                ("system", {}, ""),
                (
                    "user",
                    {"source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}},
                    ".source.type",
                ),
                ("user", {"source": {"type": "text", "media_type": "text/html", "data": ""}}, ".source.media_type"),
                ("user", {"source": {"type": "url", "url": "http://x"}}, ".source.type"),
                ("user", {"source": {"type": "text", "media_type": "text/plain"}}, ".source.data"),
                ("user", {"citations": {"enabled": True}}, ".citations"),
            )
        ],
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"compaction": {"type": "compact"}}, "compaction"),
        ({"tools": [{"name": "x y", "input_schema": {"type": "object"}}]}, "tools[0].name"),
        ({"tools": [{"name": "x", "input_schema": {"type": "object", "required": 5}}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"temperature": "hot"}, "temperature"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
def test_what_is_wrong_is_named_in_anthropics_words(server: Running, changes: dict[str, Any], param: str) -> None:
    answer = httpx.post(f"{server.url}/v1/messages", json=BODY | changes)
    error = parsed(ErrorResponse, answer.json(), "param", "code").error
    assert (answer.status_code, error.type) == (400, "invalid_request_error")
    assert error.param == param


def test_who_asks_a_model_to_think_that_cannot_hears_what_to_send(server: Running) -> None:
    client = client_of(server)
    with pytest.raises(anthropic.BadRequestError, match=r'leave thinking out, or send the type .*"disabled'):
        client.messages.create(**BODY | {"thinking": {"type": "enabled", "budget_tokens": 1024}})
    for kind in ("disabled", "adaptive"):
        assert client.messages.create(**BODY | {"thinking": {"type": kind}}).content[0].text == "Hello, wörld"


def test_the_clients_loop_of_tools_sends_the_whole_conversation(thinking: Running) -> None:
    """It would have the server keep it, which hears of that and does not."""

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Of a city."""
        return f"rain in {city}"

    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    thinking.service.scripts["ask"] = Script([call])
    *_, last = client_of(thinking).beta.messages.tool_runner(**BODY, tools=[weather])
    assert last.content[0].text == "Hello, wörld"
    _, request = thinking.service.generated
    assert [message["role"] for message in request.prompt.messages] == ["user", "assistant", "tool"]
    assert request.prompt.tools is not None
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        answer = httpx.post(f"{thinking.url}/v1/messages", json=BODY | {"thread": thread})
        told = parsed(ErrorResponse, answer.json(), "param", "code", "details").error
        assert (answer.status_code, told.code, told.param) == (400, "thread_unsupported_request", "thread")


def test_failures(server: Running) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client_of(server).messages.create(**BODY | {"model": "another"})
    assert missing.value.body["error"]["type"] == "not_found_error"
    server.service.scripts["ask"] = Script(texts=[], error=Overloaded("full", retry_after=3))
    with pytest.raises(anthropic.InternalServerError) as full:
        client_of(server).messages.create(**BODY)
    assert full.value.status_code == 503 and "retry-after" in full.value.response.headers
    parsed(ErrorResponse, full.value.body, "param", "code")
    assert full.value.body["error"]["type"] == "overloaded_error"


def test_a_failure_in_a_stream_is_an_error_and_no_clean_end(server: Running) -> None:
    server.service.scripts["ask"] = Script(texts=["a", "b"], error=Overloaded("full"))
    with pytest.raises(anthropic.APIStatusError) as failed, client_of(server).messages.stream(**BODY) as stream:
        stream.until_done()
    parsed(ErrorResponse, failed.value.body, "param", "code")
    with pytest.raises(httpx.RemoteProtocolError):
        events_of(server, "/v1/messages", BODY)


def test_tokens_are_counted(server: Running) -> None:
    counted = client_of(server).messages.count_tokens(model=MODEL, messages=BODY["messages"], system="Be brief.")
    assert counted.input_tokens == len(PROMPT_IDS)
    sent = httpx.post(f"{server.url}/v1/messages/count_tokens", json={"messages": BODY["messages"]}).json()
    parsed(MessageTokensCount, sent)
    assert [len(request.prompt.messages) for request in server.service.generated] == [2, 1]


@pytest.mark.parametrize("content", [[], [{"type": "redacted_thinking", "data": "xyz"}]])
def test_an_answer_without_text_is_taken_back(server: Running, content: list[Any]) -> None:
    """As the answer of a model that ends at once, which has no block."""
    server.service.scripts["none"] = Script([""])
    client = client_of(server)
    asked = {"role": "user", "content": "none"}
    assert client.messages.create(**BODY | {"messages": [asked]}).content == []
    messages = [asked, {"role": "assistant", "content": content}, *BODY["messages"]]
    answer = client.messages.create(**BODY | {"messages": messages})
    path = "messages[1].content[0].data"
    warning = f"ignored: '{path}' has no effect: Only the model that wrote it can read it"
    assert (answer.model_extra or {}).get("warnings", []) == [warning] * len(content)
    _, request = server.service.generated
    assert [message["content"] for message in request.prompt.messages] == ["none", "", "ask"]


def test_citations_of_another_models_answer_are_left_out(server: Running) -> None:
    cited = [{"type": "char_location", "cited_text": "x", "document_index": 0, "start_char_index": 0}]
    said = {"role": "assistant", "content": [{"type": "text", "text": "Hi", "citations": cited}]}
    answer = client_of(server).messages.create(**BODY | {"messages": [*BODY["messages"], said, *BODY["messages"]]})
    (warning,) = answer.model_extra["warnings"]
    assert warning.startswith("ignored: 'messages[1].content[0].citations' has no effect: ")


@pytest.mark.parametrize("content", ["", []])
def test_an_answer_that_is_still_empty_is_written_from_its_beginning(server: Running, content: Any) -> None:
    client, messages = client_of(server), [*BODY["messages"], {"role": "assistant", "content": content}]
    assert client.messages.create(**BODY | {"messages": messages}).content[0].text == "Hello, wörld"
    client.messages.count_tokens(model=MODEL, messages=messages)
    for request in server.service.generated:
        assert len(request.prompt.messages) == len(BODY["messages"]) and not request.prompt.continues
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        client.messages.create(**BODY | {"messages": messages[-1:]})


@pytest.mark.parametrize(
    ("field", "value", "ignored"),
    [
        ("context_management", {"edits": []}, []),
        (
            "context_management",
            {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            ["ignored: 'context_management' has no effect: All of the conversation is read"],
        ),
        ("thinking", {"type": "adaptive", "display": "summarized"}, []),
        (
            "thinking",
            {"type": "adaptive", "display": "omitted"},
            ["ignored: 'thinking.display' has no effect: It is shown as it is"],
        ),
    ],
)
def test_hints_are_taken_and_named(thinking: Running, field: str, value: object, ignored: list[str]) -> None:
    answer = httpx.post(f"{thinking.url}/v1/messages", json=BODY | {field: value})
    assert answer.status_code == 200, answer.text
    assert answer.json().get("warnings", []) == ignored


@pytest.mark.parametrize("content", [" ", [{"type": "tool_use", "id": "x", "name": "weather", "input": {}}]])
def test_a_conversation_is_counted_that_cannot_be_continued(thinking: Running, content: Any) -> None:
    messages = [*BODY["messages"], {"role": "assistant", "content": content}]
    client = client_of(thinking)
    assert client.messages.count_tokens(model=MODEL, messages=messages).input_tokens == len(PROMPT_IDS)
    prompt = thinking.service.generated[-1].prompt
    assert (prompt.continues, prompt.variables["add_generation_prompt"]) == (False, False)
    with pytest.raises(anthropic.BadRequestError, match="which is to be continued"):
        client.messages.create(**BODY | {"messages": messages})
    begun = [*BODY["messages"], {"role": "assistant", "content": "It is"}]
    client.messages.count_tokens(model=MODEL, messages=begun)
    assert thinking.service.generated[-1].prompt.continues


def test_either_header_has_the_key() -> None:
    with running(api_keys=KeyRing(["sk-one"])) as server:
        assert client_of(server, api_key="sk-one").messages.create(**BODY).type == "message"
        assert client_of(server, api_key=None, auth_token="sk-one").messages.create(**BODY).type == "message"
        for headers in ({"x-api-key": "sk-two"}, {"x-api-key": ""}, {}, {"x-api-key": "Bearer sk-one"}):
            answer = httpx.post(f"{server.url}/v1/messages", json=BODY, headers=headers)
            error = parsed(ErrorResponse, answer.json(), "param", "code").error
            assert (answer.status_code, error.type, error.code) == (401, "authentication_error", "invalid_api_key")
        twice = [("x-api-key", "sk-one"), ("x-api-key", "sk-one")]
        assert httpx.post(f"{server.url}/v1/messages", json=BODY, headers=twice).status_code == 401
        wrong = {"authorization": "Bearer sk-two", "x-api-key": "sk-one"}
        assert httpx.post(f"{server.url}/v1/messages", json=BODY, headers=wrong).status_code == 401
        assert httpx.get(f"{server.url}/v1/models", headers={"x-api-key": "sk-one"}).status_code == 200
