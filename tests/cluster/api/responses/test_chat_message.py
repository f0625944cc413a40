"""Tool calls and reasoning by way of the real client."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.cluster.api.scripted import MODEL, PROMPT_IDS, Running, Script, running

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Today's.", "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}
CALL = [
    "Let me",
    " see.\n<tool",
    "_call>\n{",
    '"name": "wea',
    'ther", "arguments"',
    ': {"city": "Pa',
    'ris"}}\n</tool_call>',
]
SECOND = ["\n<tool_call>\n", '{"name": "weather", "arguments": {"city": "Oslo"}}', "\n</tool_call>"]
THOUGHT = ["<think>", "\nSun", "\n or rain?", "\n</th", "ink>", "\n\n", "Rain", "."]


@pytest.fixture(scope="module")
def tool_server() -> Iterator[Running]:
    with running(model={"tool_format": "hermes", "reasoning_ids": (1, 2)}) as server:
        server.service.scripts |= {"call": Script(CALL), "two": Script(CALL + SECOND), "think": Script(THOUGHT)}
        yield server


@pytest.fixture(scope="module")
def tool_client(tool_server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tool_server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], **fields)


def streamed(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    """The completion that the client's own helper joins from a stream."""
    messages = [{"role": "user", "content": text}]
    with client.chat.completions.stream(model=MODEL, messages=messages, **fields) as events:
        return events.get_final_completion()


def test_a_call_whole_and_streamed(tool_client: openai.OpenAI) -> None:
    [choice] = ask(tool_client, "call", tools=[TOOL]).choices
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
        "function",
        "weather",
        {"city": "Paris"},
    )

    [joined] = streamed(tool_client, "call", tools=[TOOL]).choices
    assert (joined.finish_reason, joined.message.content) == ("tool_calls", "Let me see.")
    [other] = joined.message.tool_calls
    assert (other.function.name, other.function.arguments) == ("weather", call.function.arguments)


def test_arguments_are_streamed_as_they_are_written(tool_client: openai.OpenAI) -> None:
    deltas = [chunk.choices[0].delta for chunk in ask(tool_client, "call", tools=[TOOL], stream=True)]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.function.name for call in calls] == ["weather", None, None]
    assert [call.function.arguments for call in calls] == ["", '{"city": "Pa', 'ris"}']
    assert [call.id is None for call in calls] == [False, True, True]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."


def test_parallel_calls_have_ids_of_their_own_unless_only_one_is_wanted(tool_client: openai.OpenAI) -> None:
    for answer in (ask(tool_client, "two", tools=[TOOL]), streamed(tool_client, "two", tools=[TOOL])):
        first, second = answer.choices[0].message.tool_calls
        assert json.loads(second.function.arguments) == {"city": "Oslo"}
        assert first.id != second.id
    for answer in (
        ask(tool_client, "two", tools=[TOOL], parallel_tool_calls=False),
        streamed(tool_client, "two", tools=[TOOL], parallel_tool_calls=False),
    ):
        [only] = answer.choices[0].message.tool_calls
        assert json.loads(only.function.arguments) == {"city": "Paris"}


def test_without_tools_the_text_is_content(tool_client: openai.OpenAI) -> None:
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        [choice] = ask(tool_client, "call", **fields).choices
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        assert choice.message.content == "".join(CALL)


def test_tools_and_calls_reach_the_template(tool_client: openai.OpenAI, tool_server: Running) -> None:
    message = ask(tool_client, "call", tools=[TOOL]).choices[0].message
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain"}
    messages = [{"role": "user", "content": "call"}, message, answer]
    tool_client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    prompt = tool_server.service.generated[-1].prompt
    assert prompt.tools == [TOOL]
    assert prompt.messages[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Paris"}}
    assert prompt.messages[2] == answer


def test_reasoning_is_separated(tool_client: openai.OpenAI) -> None:
    message = ask(tool_client, "think").choices[0].message
    assert (message.content, message.reasoning_content, message.reasoning) == ("Rain.", *["Sun\n or rain?"] * 2)
    assert ask(tool_client, "think", logprobs=True).choices[0].logprobs.content[2].token == "\n or rain?"

    deltas = [chunk.choices[0].delta.model_extra for chunk in ask(tool_client, "think", stream=True)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Sun\n or rain?"
    deltas = [chunk.choices[0].delta.content or "" for chunk in ask(tool_client, "think", stream=True)]
    assert "".join(deltas) == "Rain."


def test_an_answer_that_was_cut_while_it_thought_can_be_sent_back(
    tool_client: openai.OpenAI, tool_server: Running
) -> None:
    tool_server.service.scripts["cut"] = Script(["<think>", "Sun"], finish_reason="length")
    message = ask(tool_client, "cut").choices[0].message
    assert (message.content, message.reasoning) == ("", "Sun")
    for answer in (message, {"role": "assistant", "content": None, "reasoning": "Sun"}):
        messages = [{"role": "user", "content": "cut"}, answer, {"role": "user", "content": "Go on"}]
        tool_client.chat.completions.create(model=MODEL, messages=messages)
        sent = tool_server.service.generated[-1].prompt.messages[1]
        assert (sent["content"], sent["reasoning_content"]) == ("", "Sun")


def test_reasoning_is_left_out_or_left_in(tool_client: openai.OpenAI) -> None:
    message = ask(tool_client, "think", extra_body={"include_reasoning": False}).choices[0].message
    assert (message.content, message.model_extra) == ("Rain.", {})
    message = ask(tool_client, "think", extra_body={"separate_reasoning": False}).choices[0].message
    assert message.content == "".join(THOUGHT)


def test_a_prompt_may_end_inside_the_reasoning() -> None:
    with running(model={"reasoning_ids": (PROMPT_IDS[1], 2)}) as server:
        server.service.scripts["think"] = Script(["Sun", " or rain?</think>", "Rain"])
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
            message = ask(client, "think").choices[0].message
    assert (message.content, message.reasoning) == ("Rain", "Sun or rain?")


def test_once_the_reasoning_is_over_deltas_take_the_shortcut() -> None:
    """They are written without waking the stream's task, as those of a text without reasoning."""
    with running(model={"reasoning_ids": (1, 2)}) as server:
        server.service.scripts["think"] = Script(THOUGHT + [f" {number}" for number in range(20)])
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
            deltas = [chunk.choices[0].delta.content or "" for chunk in ask(client, "think", stream=True)]
    assert "".join(deltas) == "Rain." + "".join(f" {number}" for number in range(20))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_can_be_forced(tool_client: openai.OpenAI, tool_server: Running, choice: Any) -> None:
    ask(tool_client, "call", tools=[TOOL, NOW], tool_choice=choice)
    request = tool_server.service.generated[-1]
    assert request.params.structured_outputs.kind == "grammar"
    assert ("now" in request.params.structured_outputs.text) == (choice == "required")
    assert request.prompt.variables == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "sun"}}}, "tool_choice"),
        ({"tool_choice": "required", "extra_body": {"guided_regex": "a"}}, "guided_regex"),
    ],
)
def test_what_cannot_be_forced(tool_client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(tool_client, "call", tools=[TOOL], **fields)
    assert caught.value.param == param
