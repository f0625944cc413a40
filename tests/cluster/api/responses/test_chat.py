"""Chat completions by way of the real client."""

from typing import Any

import openai
import pytest

from engine.request import ChatPrompt
from engine.sampling_params import SamplingParams
from tests.cluster.api.scripted import MAX_MODEL_LEN, MODEL, PROMPT_IDS, Running, Script

HELLO = [{"role": "user", "content": "Hello?"}]
TEXT = "Hello, wörld"


def test_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    [choice] = answer.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", TEXT)
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 3, 6)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


def test_stream(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    assert {(chunk.id, chunk.object, chunk.usage) for chunk in chunks} == {
        (chunks[0].id, "chat.completion.chunk", None)
    }
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant", None, None, None, None]
    assert [delta.content for delta in deltas] == ["", "Hello", ",", " wörld", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 4 + ["stop"]


def test_stream_with_usage_ends_in_a_chunk_of_its_own(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, stream_options=options))
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 6)


def test_two_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, n=2)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(0, TEXT), (1, TEXT.upper())]
    assert answer.usage.completion_tokens == 6
    texts = ["", ""]
    for chunk in client.chat.completions.create(model=MODEL, messages=HELLO, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [TEXT, TEXT.upper()]


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, top_logprobs=4)
    content = answer.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["Hello", ",", " wörld"]
    assert (content[2].logprob, bytes(content[2].bytes).decode()) == (-1.5, " wörld")
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [
        ("r1", -1.0),
        ("Hello", -1.5),
        ("r3", -3.0),
        ("r4", -9999.0),
    ]
    chunks = client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, top_logprobs=4, stream=True)
    streamed = [chunk.choices[0].logprobs.content[0] for chunk in chunks if chunk.choices[0].logprobs]
    assert streamed == content


def test_logprobs_may_name_tokens_by_their_ids(client: openai.OpenAI) -> None:
    """As trainers have them, whose tokens need not be whole characters."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "extra_body": {"return_tokens_as_token_ids": True, "return_token_ids": True},
    }
    answer = client.chat.completions.create(messages=HELLO, logprobs=True, top_logprobs=2, **asked)
    content = answer.choices[0].logprobs.content
    assert [entry.token for entry in content] == [f"token_id:{number}" for number in answer.choices[0].token_ids]
    assert bytes(content[2].bytes).decode() == " wörld"
    assert all(top.token.startswith("token_id:") for entry in content for top in entry.top_logprobs)
    told = client.completions.create(prompt="Hi", logprobs=2, **asked).choices[0]
    assert told.logprobs.tokens == [f"token_id:{number}" for number in told.token_ids]
    assert all(name.startswith("token_id:") for names in told.logprobs.top_logprobs for name in names)


def test_logprobs_without_top_ones(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True)
    assert [entry.top_logprobs for entry in answer.choices[0].logprobs.content] == [[], [], []]


def test_prompt_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"prompt_logprobs": 0})
    assert answer.prompt_logprobs == [
        None,
        {"8": {"logprob": -1.5, "rank": 2, "decoded_token": "<8>"}},
        {"9": {"logprob": -1.5, "rank": 2, "decoded_token": "<9>"}},
    ]


def test_messages_for_the_template(client: openai.OpenAI, server: Running) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    # An assistant's message as the client gives it back, with all its empty fields.
    said = client.chat.completions.create(model=MODEL, messages=HELLO).choices[0].message
    messages = [{"role": "developer", "content": "Be brief."}, *HELLO, said, {"role": "user", "content": parts}]
    client.chat.completions.create(model=MODEL, messages=messages)
    assert server.service.generated[-1].prompt == ChatPrompt(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello?"},
            {"role": "assistant", "content": TEXT},
            {"role": "user", "content": "one\ntwo"},
        ]
    )


def test_parameters_reach_the_service(client: openai.OpenAI, server: Running) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        n=2,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=1,
        frequency_penalty=-1,
        seed=-5,
        stop=["a", "b"],
        logit_bias={"17": -100},
        max_completion_tokens=9,
        logprobs=True,
        top_logprobs=3,
        extra_body={
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "stop_token_ids": [3],
            "bad_words": ["no"],
            "allowed_token_ids": [17, 18],
            "ignore_eos": True,
            "min_tokens": 2,
            "prompt_logprobs": 1,
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
            "priority": 4,
            "cache_salt": "salt/+==",
        },
    )
    [generated] = server.service.generated
    assert generated.id.startswith("chatcmpl-")
    assert (generated.priority, generated.cache_salt) == (4, "salt/+==")
    assert generated.params == SamplingParams(
        n=2,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=1,
        frequency_penalty=-1,
        seed=-5,
        stop=("a", "b"),
        logit_bias={17: -100},
        max_tokens=9,
        logprobs=3,
        top_k=5,
        min_p=0.1,
        repetition_penalty=1.1,
        stop_token_ids=(3,),
        bad_words=("no",),
        allowed_token_ids=(17, 18),
        ignore_eos=True,
        min_tokens=2,
        prompt_logprobs=1,
        skip_special_tokens=False,
        include_stop_str_in_output=True,
    )


@pytest.mark.parametrize(
    "fields", [{}, {"stop": None, "n": None, "temperature": None, "max_tokens": None, "seed": None}]
)
def test_what_is_left_out_or_null_is_the_default(client: openai.OpenAI, server: Running, fields: dict) -> None:
    client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=fields)
    [generated] = server.service.generated
    assert generated.params == SamplingParams(max_tokens=None)
    assert (generated.priority, generated.cache_salt) == (0, None)


def test_beams(client: openai.OpenAI, server: Running) -> None:
    client.chat.completions.create(model=MODEL, messages=HELLO, n=2, extra_body={"use_beam_search": True})
    client.chat.completions.create(
        model=MODEL, messages=HELLO, extra_body={"beam_width": 4, "length_penalty": 0.5, "early_stopping": True}
    )
    assert [generated.params for generated in server.service.generated] == [
        SamplingParams(n=2, beam_width=2, max_tokens=None),
        SamplingParams(beam_width=4, length_penalty=0.5, early_stopping=True, max_tokens=None),
    ]


def test_stop_reason_and_length(client: openai.OpenAI, server: Running) -> None:
    server.service.scripts["Hello?"] = Script(["a"], stop_reason="###")
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", "###")
    server.service.scripts["Hello?"] = Script(["a"], finish_reason="length")
    *_, last = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    assert (last.choices[0].finish_reason, last.choices[0].stop_reason) == ("length", None)


IDS = {"return_token_ids": True}


@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"n": 2}])
def test_token_ids(client: openai.OpenAI, more: dict) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=IDS, **more)
    assert answer.prompt_token_ids == PROMPT_IDS
    assert [choice.token_ids for choice in answer.choices] == [[100, 101, 102]] * len(answer.choices)
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=IDS, stream=True, **more))
    assert chunks[0].prompt_token_ids == PROMPT_IDS
    assert not any("prompt_token_ids" in chunk.model_extra for chunk in chunks[1:])
    for choice in answer.choices:
        parts = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        ids = [part.model_extra["token_ids"] for part in parts if "token_ids" in part.model_extra]
        assert ids == [[100], [101], [102]]


def test_a_token_without_text_has_a_chunk_if_ids_are_asked_for(client: openai.OpenAI, server: Running) -> None:
    server.service.scripts["Hello?"] = Script(["", "ö", ""])
    asked = {"model": MODEL, "messages": HELLO, "stream": True}
    contents = [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**asked)]
    assert contents == ["", "ö", None]
    chunks = list(client.chat.completions.create(**asked, extra_body=IDS))
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "", "ö", "", None]


def test_usage_in_every_chunk(client: openai.OpenAI, server: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    before = server.service.num_by_shortcut
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, stream_options=options))
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 1, 2, 3, 3, 3]
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {3}
    assert server.service.num_by_shortcut == before  # which knows one usage only
    assert chunks[-1].choices == []


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_echoes_the_last_message(client: openai.OpenAI, stream: bool) -> None:
    began = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "I say: "}]}]
    for messages, expected in ((began, "I say: " + TEXT), (HELLO, TEXT)):
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, stream=stream, extra_body={"echo": True}
        )
        if stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in answer) == expected
        else:
            assert answer.choices[0].message.content == expected


def test_names_reach_the_template(client: openai.OpenAI, server: Running) -> None:
    client.chat.completions.create(model=MODEL, messages=[HELLO[0] | {"name": "Ada"}])
    assert server.service.generated[-1].prompt == ChatPrompt([HELLO[0] | {"name": "Ada"}])


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 5}, 5),
        ({"truncate_prompt_tokens": -1}, MAX_MODEL_LEN - 1),
        ({"truncate_prompt_tokens": -1, "max_tokens": 10}, MAX_MODEL_LEN - 10),
        ({"truncate_prompt_tokens": None}, None),
    ],
)
def test_how_much_of_a_prompt_is_kept(client: openai.OpenAI, server: Running, fields: dict, kept: int | None) -> None:
    client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=fields)
    assert server.service.generated[-1].max_prompt_tokens == kept
