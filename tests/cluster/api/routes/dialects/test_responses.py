"""The Responses API, by the client of `openai` and by HTTP."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import InputTokenCountResponse, Response, ResponseStreamEvent

from cluster.api.keys.key_ring import KeyRing
from cluster.gateway.streams.records import store_changes
from cluster.gateway.streams.records.response_records import ResponseRecords
from cluster.gateway.streams.records.store_changes import StoreChanges
from engine.errors import Overloaded
from engine.request import ChatPrompt
from tests.cluster.api.routes.dialects.said import TEXTS, events_of
from tests.cluster.api.scripted import FINGERPRINT, MODEL, PROMPT_IDS, Running, Script, running
from tests.strict_types import parsed

OURS = ("system_fingerprint", "warnings", "store", "reason", "name")
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


class Kept:
    """A `ResponseStore` of this process; unless it works, it stores nothing."""

    def __init__(self) -> None:
        self.records = ResponseRecords()
        self.works = True

    def wake(self) -> None: ...

    async def keep(self, owner: bytes, response_id: str, record: bytes) -> bool:
        if self.works:
            self.records.write(StoreChanges(kept=[store_changes.Kept((owner, response_id), record, 1.0)]), 0.0)
        return self.works

    async def find(self, owner: bytes, response_id: str) -> bytes | None:
        return self.records.find((owner, response_id), 0.0)

    async def forget(self, owner: bytes, response_id: str) -> bool:
        was_there = await self.find(owner, response_id) is not None
        self.records.write(StoreChanges(forgotten=[(owner, response_id)]), 0.0)
        return was_there


@pytest.fixture(scope="module")
def kept() -> Kept:
    return Kept()


@pytest.fixture(scope="module")
def module_server(kept: Kept) -> Iterator[Running]:
    with running(kept=kept, model={"tool_format": "hermes", "reasoning_ids": (101, 103)}) as server:
        yield server


@pytest.fixture
def server(module_server: Running, kept: Kept) -> Running:
    module_server.service.generated.clear()
    module_server.service.scripts.clear()
    kept.works = True
    return module_server


_CLIENTS = ExitStack()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """All clients of a test, at its end."""
    with _CLIENTS:
        yield


def client_of(server: Running, **options: Any) -> openai.OpenAI:
    made = openai.OpenAI(base_url=f"{server.url}/v1", max_retries=0, **{"api_key": "any", **options})
    return _CLIENTS.enter_context(made)


def test_a_text(server: Running) -> None:
    sent = httpx.post(f"{server.url}/v1/responses", json={"input": "ask", "metadata": {"a": "b"}, "unknown": 1}).json()
    response = parsed(Response, sent, *OURS)
    assert response.id.startswith("resp_") and response.system_fingerprint == FINGERPRINT
    assert (response.status, response.output_text, response.model) == ("completed", "Hello, wörld", MODEL)
    assert (response.metadata, response.warnings) == ({"a": "b"}, ["ignored: unknown field 'unknown'"])
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len(PROMPT_IDS), 3)
    (request,) = server.service.generated
    assert request.id == response.id and request.params.max_tokens is None
    assert request.prompt == ChatPrompt([{"role": "user", "content": "ask"}])


def test_a_limit_of_hosted_tools_calls_is_repeated(server: Running) -> None:
    answer = client_of(server).responses.create(model=MODEL, input="Hello?", max_tool_calls=3)
    assert (answer.max_tool_calls, answer.model_extra and answer.model_extra.get("warnings")) == (3, None)


def test_tokens_are_counted(server: Running) -> None:
    """Of what the answer would be to, with all that was said before."""
    client = client_of(server)
    first = client.responses.create(model=MODEL, input="ask")
    server.service.generated.clear()
    counted = client.responses.input_tokens.count(
        model=MODEL, input="ask again", previous_response_id=first.id, instructions="Be brief."
    )
    assert counted.input_tokens == len(PROMPT_IDS)
    sent = httpx.post(f"{server.url}/v1/responses/input_tokens", json={"input": "ask"}).json()
    parsed(InputTokenCountResponse, sent)
    (long, short) = [request.prompt.messages for request in server.service.generated]
    assert [message["role"] for message in long] == ["system", "user", "assistant", "user"]
    assert short == [{"role": "user", "content": "ask"}]
    for bad in ({}, {"input": "ask", "temperature": 9}):
        refused = httpx.post(f"{server.url}/v1/responses/input_tokens", json=bad)
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


def test_the_clients_stream_ends_with_the_whole_answer(server: Running) -> None:
    server.service.scripts["ask"] = Script(texts=TEXTS)
    client = client_of(server)
    asked: dict[str, Any] = {"model": MODEL, "input": "ask", "tools": [WEATHER]}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    assert told(streamed.to_dict()["output"]) == told(whole.to_dict()["output"])
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    assert whole.output[0].content[0].text == "One two" and whole.output_text == "Let me look."
    assert [item.arguments for item in whole.output[2:]] == ['{"city": "Bremen"}', "{}"]
    assert whole.usage.output_tokens_details.reasoning_tokens == 4
    assert events[-1].type == "response.completed"


def told(value: Any) -> Any:
    """Without ids, and what the client has added."""
    if isinstance(value, list):
        return [told(item) for item in value]
    if not isinstance(value, dict):
        return value
    unlike = {"id", "call_id", "parsed", "parsed_arguments"}
    return {name: told(item) for name, item in value.items() if name not in unlike}


def test_every_event_is_of_its_type_and_in_order(server: Running) -> None:
    server.service.scripts["ask"] = Script(texts=TEXTS)
    events = events_of(server, "/v1/responses", {"input": "ask", "tools": [WEATHER]})
    for event in events:
        parsed(ResponseStreamEvent, event, *OURS)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"] and kinds[-1] == "completed"
    texts = ["output_item.added", "content_part.added", "{}.delta", "{}.done", "content_part.done", "output_item.done"]
    call = ["output_item.added", "{}.delta", "{}.done", "output_item.done"]
    of_kinds = ((texts, "reasoning_text"), (texts, "output_text"), *[(call, "function_call_arguments")] * 2)
    expected = [kind.format(name) for names, name in of_kinds for kind in names]
    assert [kind for kind, before in zip(kinds[2:-1], kinds[1:], strict=False) if kind != before] == expected
    output = events[-1]["response"]["output"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    for index, item in enumerate(output):
        deltas = [event["delta"] for event in events if event.get("output_index") == index and "delta" in event]
        assert "".join(deltas) == (item["arguments"] if "arguments" in item else item["content"][0]["text"])
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"


def allowing(*names: str) -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": "required", "tools": tools}


def test_tools_may_be_limited_to_some(server: Running) -> None:
    choice = allowing("weather")
    told = client_of(server).responses.create(
        model=MODEL, input="hello", tools=[WEATHER, WEATHER | {"name": "sun"}], tool_choice=choice
    )
    assert (told.tool_choice.to_dict(), [tool.name for tool in told.tools]) == (choice, ["weather", "sun"])
    (request,) = server.service.generated
    assert isinstance(request.prompt, ChatPrompt) and request.prompt.tools is not None
    assert [tool["function"]["name"] for tool in request.prompt.tools] == ["weather"]
    assert request.params.structured_outputs is not None
    assert "sun" not in request.params.structured_outputs.text


def test_log_probabilities_are_of_the_text(server: Running) -> None:
    """Those of events, joined, are those of the whole answer."""
    server.service.scripts["ask"] = Script(["Hel", "lo", "!"])
    client = client_of(server)
    asked: dict[str, Any] = {"model": MODEL, "input": "ask", "include": ["message.output_text.logprobs"]}
    whole = client.responses.create(**asked, top_logprobs=3).to_dict()
    assert whole["top_logprobs"] == 3
    (part,) = whole["output"][0]["content"]
    assert [(each["token"], each["logprob"]) for each in part["logprobs"]] == [("Hel", -1.5), ("lo", -1.5), ("!", -1.5)]
    assert [other["token"] for other in part["logprobs"][0]["top_logprobs"]] == ["r1", "Hel", "r3"]
    events = [event.to_dict() for event in client.responses.create(**asked, top_logprobs=3, stream=True)]
    of_events = {
        kind: [
            each for event in events if event["type"] == f"response.output_text.{kind}" for each in event["logprobs"]
        ]
        for kind in ("delta", "done")
    }
    assert of_events == {"delta": part["logprobs"], "done": part["logprobs"]}
    assert events[-1]["response"]["output"][0]["content"] == [part]
    (alone,) = client.responses.create(**asked).to_dict()["output"][0]["content"]
    assert [each | {"top_logprobs": []} for each in part["logprobs"]] == alone["logprobs"]
    assert client.responses.create(model=MODEL, input="ask").to_dict()["output"][0]["content"][0]["logprobs"] == []
    told = client.responses.create(**asked, tools=[WEATHER], tool_choice="none").to_dict()
    assert len(told["output"][0]["content"][0]["logprobs"]) == 3


def test_items_are_translated(server: Running) -> None:
    client_of(server).responses.create(
        model=MODEL,
        instructions="Be brief.",
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        input=[
            {"role": "developer", "content": "In English."},
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Köln"}'},
            {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": '{"ci'},  # cut off
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
            {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "sun"}]},
            {"role": "assistant", "content": "Both."},
            {"type": "message", "role": "user", "content": "And now?"},
        ],
    )
    (request,) = server.service.generated
    assert isinstance(request.prompt, ChatPrompt)
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        for number, arguments in ((1, {"city": "Köln"}), (2, '{"ci'))
    ]
    assert list(request.prompt.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "In English."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
        {"role": "tool", "content": "sun", "tool_call_id": "call_2"},
        {"role": "assistant", "content": "Both."},
        {"role": "user", "content": "And now?"},
    ]
    assert request.prompt.variables["reasoning_effort"] == "low"
    params = request.params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, 5)
    assert params.structured_outputs is not None


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_from_a_stored_one(server: Running, stream: bool) -> None:
    server.service.scripts["ask"] = Script(texts=TEXTS)
    client = client_of(server)
    asked: dict[str, Any] = {"model": MODEL, "tools": [WEATHER]}
    first = client.responses.create(**asked, input="ask", instructions="Only now.")
    answers = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in first.output
        if item.type == "function_call"
    ]
    assert len(answers) == 2
    second = client.responses.create(**asked, input=answers, previous_response_id=first.id, stream=stream)
    if stream:
        *_, last = second
        second = last.response
    assert second.previous_response_id == first.id
    sent = [{"role": "user", "content": "ask"}, *[item.to_dict() for item in first.output], *answers]
    client.responses.create(**asked, input=sent, store=False)
    _, by_id, by_hand = server.service.generated
    assert by_id.prompt == by_hand.prompt
    third = client.responses.create(model=MODEL, input="again", previous_response_id=second.id)
    assert len(server.service.generated[-1].prompt.messages) == len(by_id.prompt.messages) + 2
    assert third.status == "completed"


def test_items_of_stored_responses_may_be_named(server: Running) -> None:
    """As Vercel's AI SDK does with texts and reasoning."""
    server.service.scripts["ask"] = Script(texts=TEXTS)
    client = client_of(server)
    first = client.responses.create(model=MODEL, tools=[WEATHER], input="ask")
    answers: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in first.output
        if item.type == "function_call"
    ]
    by_name = [
        item.to_dict() if item.type == "function_call" else {"type": "item_reference", "id": item.id}
        for item in first.output
    ]
    assert [item["type"] for item in by_name[:2]] == ["item_reference"] * 2
    asked = {"role": "user", "content": "ask"}
    second = client.responses.create(model=MODEL, input=[asked, *by_name, *answers])
    client.responses.create(model=MODEL, input=[asked, *[item.to_dict() for item in first.output], *answers])
    client.responses.create(model=MODEL, input="more", previous_response_id=second.id)
    client.responses.input_tokens.count(model=MODEL, input=[asked, *by_name, *answers])
    _, named, sent, later, counted = [request.prompt for request in server.service.generated]
    assert named == sent == counted
    assert later.messages[: len(sent.messages)] == sent.messages


@pytest.mark.parametrize("name", ["msg_1_0", "x", "_", "resp_1", "msg_é_0"])
def test_an_item_that_is_not_stored_cannot_be_named(server: Running, name: str) -> None:
    client = client_of(server)
    made, deleted = (client.responses.create(model=MODEL, input="ask") for _ in range(2))
    client.responses.delete(deleted.id)
    own = made.output[0].id
    for unknown in (name, own.replace("msg_", "rs_"), f"{own}0", deleted.output[0].id):
        with pytest.raises(openai.NotFoundError, match="send the item itself") as caught:
            client.responses.create(model=MODEL, input=[{"type": "item_reference", "id": unknown}])
        assert (caught.value.code, caught.value.param) == ("item_not_found", "input[0].id")


@pytest.mark.parametrize("arguments", ['{"city": "a", "city": "b"}', '{"days": NaN}'])
def test_a_response_goes_on_after_a_call_whose_arguments_are_no_object(server: Running, arguments: str) -> None:
    texts = [f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>']
    server.service.scripts["ask"] = Script(texts=texts)
    client = client_of(server)
    (call,) = (first := client.responses.create(model=MODEL, input="ask", tools=[WEATHER])).output
    assert call.arguments == arguments
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = client.responses.create(model=MODEL, input=[answer], previous_response_id=first.id)
    assert second.status == "completed"


def test_a_stored_response_is_told_and_deleted(server: Running) -> None:
    client = client_of(server)
    made = client.responses.create(model=MODEL, input="ask")
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    told = httpx.delete(f"{server.url}/v1/responses/{made.id}")
    assert told.json() == {"id": made.id, "object": "response", "deleted": True}
    for again in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            again(made.id)
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model=MODEL, input="x", previous_response_id=made.id)
    assert (unknown.value.code, unknown.value.param) == ("response_not_found", "previous_response_id")
    unkept = client.responses.create(model=MODEL, input="ask", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_a_key_sees_only_its_own(kept: Kept) -> None:
    with running(kept=kept, api_keys=KeyRing(["sk-one", "sk-two"])) as server:
        one, two = client_of(server, api_key="sk-one"), client_of(server, api_key="sk-two")
        made = one.responses.create(model=MODEL, input="ask")
        with pytest.raises(openai.NotFoundError):
            two.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.create(model=MODEL, input="x", previous_response_id=made.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.create(model=MODEL, input=[{"type": "item_reference", "id": made.output[0].id}])
        assert one.responses.retrieve(made.id).id == made.id
        assert one.responses.create(model=MODEL, input="x", previous_response_id=made.id).status == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_stored_is_answered_all_the_same(server: Running, kept: Kept, stream: bool) -> None:
    kept.works = False
    body = {"input": "ask"}
    if stream:
        sent = events_of(server, "/v1/responses", body)[-1]["response"]
    else:
        sent = httpx.post(f"{server.url}/v1/responses", json=body).json()
    assert (sent["status"], sent["store"]) == ("completed", False)
    assert sent["warnings"] == ["not stored: the server could not"]


def test_a_server_may_store_nothing() -> None:
    with running() as server:
        client = client_of(server)
        made = client.responses.create(model=MODEL, input="ask")
        assert made.to_dict()["store"] is False
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model=MODEL, input="ask", store=True)
        assert refused.value.param == "store"


@pytest.mark.parametrize("texts", [["Hello"], ['<tool_call>\n{"name": "weather", "arguments": {"city": "Bre']])
def test_an_answer_that_was_cut_off_is_incomplete(server: Running, texts: list[str]) -> None:
    server.service.scripts["ask"] = Script(texts=texts, finish_reason="length")
    client = client_of(server)
    made = client.responses.create(model=MODEL, input="ask", tools=[WEATHER])
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert [item.status for item in made.output] == ["incomplete"]
    last = events_of(server, "/v1/responses", {"input": "ask", "tools": [WEATHER]})[-1]
    assert last["type"] == "response.incomplete"
    parsed(ResponseStreamEvent, last, *OURS)
    assert client.responses.create(model=MODEL, input="more", previous_response_id=made.id).status == "completed"


def test_an_empty_answer_is_an_empty_message(server: Running) -> None:
    server.service.scripts["ask"] = Script(texts=[""])
    made = client_of(server).responses.create(model=MODEL, input="ask")
    assert [(item.type, item.content[0].text) for item in made.output] == [("message", "")]
    events = events_of(server, "/v1/responses", {"input": "ask"})
    assert [event["type"].rpartition(".")[2] for event in events[2:]] == [
        "added",
        "added",
        "done",
        "done",
        "done",
        "completed",
    ]


def test_a_failure_in_a_stream_is_its_last_event(server: Running) -> None:
    server.service.scripts["ask"] = Script(texts=["a", "b"], error=Overloaded("full"))
    events = list(client_of(server).responses.create(model=MODEL, input="ask", stream=True))
    assert events[-1].type == "response.failed"
    last = events_of(server, "/v1/responses", {"input": "ask"})[-1]
    response = parsed(ResponseStreamEvent, last, *OURS).response
    assert (response.status, response.error.code, response.error.reason) == (
        "failed",
        "server_error",
        "server_overloaded",
    )
    with pytest.raises(openai.InternalServerError):
        client_of(server).responses.create(model=MODEL, input="ask")
    server.service.scripts["ask"] = Script(texts=[], error=Overloaded("full"))
    with pytest.raises(openai.InternalServerError):
        client_of(server).responses.create(model=MODEL, input="ask", stream=True)


def test_a_conversation_goes_on_from_another_models_answer(server: Running) -> None:
    summary = [{"type": "summary_text", "text": "It greets"}]
    cited = [{"type": "url_citation", "url": "http://x", "title": "x", "start_index": 0, "end_index": 1}]
    items = [
        {"role": "user", "content": "Hello?"},
        {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAA"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hi", "annotations": cited}]},
        {"role": "user", "content": "ask"},
    ]
    answer = client_of(server).responses.create(model=MODEL, input=items)
    assert answer.output_text == "Hello, wörld"
    told = answer.model_extra["warnings"]
    paths = ("input[1].summary", "input[1].encrypted_content", "input[2].content[0].annotations")
    assert [warning.split("'")[1] for warning in told] == list(paths)
    (request,) = server.service.generated
    assert [message["content"] for message in request.prompt.messages] == ["Hello?", "Hi", "ask"]
    own = [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}, items[-1]]
    assert "warnings" not in client_of(server).responses.create(model=MODEL, input=own).model_extra


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": ""}]}, "input[0].id"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "x", "arguments": "," * 20_000}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "x", "parameters": {"type": 5}}]}, "tools[0].parameters"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"include": ["message.output_text.tokens"]}, "include[0]"),
        ({"include": ["message.output_text.logprobs"], "tools": [WEATHER]}, "include"),
        ({"top_logprobs": 2, "tools": [WEATHER]}, "top_logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"truncation": "middle"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1000}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "none"}}, "reasoning.summary"),
        ({"tools": [WEATHER], "tool_choice": allowing("x")}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": allowing()}, "tool_choice.tools"),
    ],
)
def test_what_is_wrong_is_named(server: Running, changes: dict[str, Any], param: str) -> None:
    answer = httpx.post(f"{server.url}/v1/responses", json={"input": "ask"} | changes)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)


def test_a_stored_response_is_not_streamed(server: Running) -> None:
    with pytest.raises(openai.BadRequestError):
        list(client_of(server).responses.retrieve("resp_1", stream=True))
