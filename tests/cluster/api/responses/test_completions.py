"""Text completions by way of the real client."""

import openai
import pytest

from engine.sampling_params import SamplingParams
from tests.cluster.api.scripted import MAX_MODEL_LEN, MODEL, PROMPT_IDS, Running, Script

TEXT = "Hello, wörld"


def test_answer(client: openai.OpenAI, server: Running) -> None:
    answer = client.completions.create(model=MODEL, prompt="Say")
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", MODEL)
    [choice] = answer.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, TEXT, "stop", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 3)
    [generated] = server.service.generated
    assert (generated.id, generated.prompt, generated.params) == (
        answer.id,
        "Say",
        SamplingParams(max_tokens=16),
    )


def test_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(model=MODEL, prompt="Say", stream=True, stream_options={"include_usage": True})
    )
    assert [choice.text for chunk in chunks for choice in chunk.choices] == ["Hello", ",", " wörld"]
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices] == [None, None, "stop"]
    assert [chunk.usage is None for chunk in chunks] == [True, True, True, False]
    assert chunks[-1].usage.total_tokens == 6


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts(client: openai.OpenAI, server: Running, prompt: object, prompts: list[object]) -> None:
    answer = client.completions.create(model=MODEL, prompt=prompt, n=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (index, TEXT.upper() if index % 2 else TEXT) for index in range(2 * len(prompts))
    ]
    assert [generated.prompt for generated in server.service.generated] == prompts
    assert len({generated.id for generated in server.service.generated}) == len(prompts)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3 * len(prompts), 6 * len(prompts))


def test_several_prompts_streamed(client: openai.OpenAI, server: Running) -> None:
    server.service.scripts["b"] = Script(["x", "y"], finish_reason="length")
    texts = ["", ""]
    reasons = {}
    for chunk in client.completions.create(model=MODEL, prompt=["a", "b"], stream=True):
        [choice] = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason
    assert (texts, reasons) == ([TEXT, "xy"], {0: "stop", 1: "length"})


def test_one_of_several_prompts_fails(client: openai.OpenAI, server: Running) -> None:
    waits = server.service.scripts["a"] = Script(["x"], waits=True)
    server.service.scripts["b"] = Script(["x"], error=RuntimeError("planted"))
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model=MODEL, prompt=["a", "b"])
    assert waits.closed.wait(10)


def test_logprobs(client: openai.OpenAI) -> None:
    logprobs = client.completions.create(model=MODEL, prompt="Say", logprobs=1).choices[0].logprobs
    assert logprobs.tokens == ["Hello", ",", " wörld"]
    assert logprobs.token_logprobs == [-1.5, -1.5, -1.5]
    assert logprobs.top_logprobs[0] == {"r1": -1.0, "Hello": -1.5}
    assert logprobs.text_offset == [0, 5, 6]
    chunks = client.completions.create(model=MODEL, prompt="Say", logprobs=1, stream=True)
    assert [chunk.choices[0].logprobs.text_offset for chunk in chunks] == [[0], [5], [6]]


def test_no_top_logprobs_is_the_sampled_tokens_own(client: openai.OpenAI) -> None:
    logprobs = client.completions.create(model=MODEL, prompt="Say", logprobs=0).choices[0].logprobs
    assert logprobs.top_logprobs[0] == {"Hello": -1.5}


def test_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[7, 8, 9], echo=True, n=2)
    assert [choice.text for choice in answer.choices] == ["<7><8><9>" + TEXT, "<7><8><9>" + TEXT.upper()]
    chunks = list(client.completions.create(model=MODEL, prompt=[7, 8, 9], echo=True, n=2, stream=True))
    assert [chunk.choices[0].text for chunk in chunks[:3]] == ["<7><8><9>Hello", "<7><8><9>HELLO", ","]


@pytest.mark.parametrize("stream", [True, False])
def test_echo_needs_the_prompts_text(client: openai.OpenAI, server: Running, stream: bool) -> None:
    server.service.scripts["7 8 9"] = Script(prompt_text=None)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[7, 8, 9], echo=True, stream=stream)
    assert (caught.value.code, caught.value.param) == ("unsupported_value", "echo")


def test_echo_with_logprobs(client: openai.OpenAI) -> None:
    logprobs = client.completions.create(model=MODEL, prompt="<7><8><9>", echo=True, logprobs=1).choices[0].logprobs
    assert logprobs.tokens == ["<7>", "<8>", "<9>", "Hello", ",", " wörld"]
    assert logprobs.token_logprobs == [None, -1.5, -1.5, -1.5, -1.5, -1.5]
    assert logprobs.top_logprobs[:2] == [None, {"r1": -1.0, "<8>": -1.5}]
    assert logprobs.text_offset == [0, 3, 6, 9, 14, 15]
    chunks = client.completions.create(model=MODEL, prompt="<7><8><9>", echo=True, logprobs=1, stream=True)
    assert [chunk.choices[0].logprobs.text_offset for chunk in chunks] == [[0, 3, 6, 9], [14], [15]]


def test_no_tokens_and_echo_are_the_prompt_alone(client: openai.OpenAI, server: Running) -> None:
    server.service.scripts["7 8 9"] = server.service.scripts["<7><8><9>"] = Script(texts=["Hello"])
    answer = client.completions.create(model=MODEL, prompt="<7><8><9>", echo=True, logprobs=1, max_tokens=0, n=2)
    assert server.service.generated[0].params == SamplingParams(n=2, max_tokens=1, logprobs=1, prompt_logprobs=1)
    for choice in answer.choices:
        assert (choice.text, choice.finish_reason) == ("<7><8><9>", "length")
        assert choice.logprobs.tokens == ["<7>", "<8>", "<9>"]
        assert choice.logprobs.token_logprobs == [None, -1.5, -1.5]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 0)
    chunks = list(client.completions.create(model=MODEL, prompt=[7, 8, 9], echo=True, max_tokens=0, stream=True))
    assert [(chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in chunks] == [("<7><8><9>", "length")]


def test_prompt_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="<7><8><9>", extra_body={"prompt_logprobs": 0})
    assert answer.choices[0].prompt_logprobs[1] == {"8": {"logprob": -1.5, "rank": 2, "decoded_token": "<8>"}}


def test_best_of(client: openai.OpenAI, server: Running) -> None:
    client.completions.create(model=MODEL, prompt="a", n=2, best_of=3)
    assert server.service.generated[0].params == SamplingParams(n=2, best_of=3, max_tokens=16)


def test_unset_max_tokens_gives_way_to_the_prompt(client: openai.OpenAI, server: Running) -> None:
    client.completions.create(model=MODEL, prompt=[1] * 60)
    assert server.service.generated[0].params.max_tokens == 4


def test_models(client: openai.OpenAI) -> None:
    [listed] = client.models.list()
    assert (listed.id, listed.object, listed.owned_by, listed.max_model_len) == (MODEL, "model", "squadron", 64)
    assert client.models.retrieve(MODEL) == listed


IDS = {"return_token_ids": True}


def test_token_ids(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": ["a", "b"], "n": 2, "extra_body": IDS}
    answer = client.completions.create(**asked)
    assert [choice.prompt_token_ids for choice in answer.choices] == [PROMPT_IDS] * 4
    assert [choice.token_ids for choice in answer.choices] == [[100, 101, 102]] * 4
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    for index in range(4):
        parts = [chunk.model_extra for chunk in chunks if chunk.index == index]
        assert [part.get("prompt_token_ids") for part in parts] == [PROMPT_IDS, None, None]
        assert [part["token_ids"] for part in parts] == [[100], [101], [102]]


def test_a_token_without_text_has_a_chunk_if_ids_are_asked_for(client: openai.OpenAI, server: Running) -> None:
    server.service.scripts["odd"] = Script(["", "", "ö", ""])
    asked = {"model": MODEL, "prompt": "odd", "stream": True}
    assert [chunk.choices[0].text for chunk in client.completions.create(**asked)] == ["ö", ""]
    chunks = list(client.completions.create(**asked, extra_body=IDS))
    assert [chunk.choices[0].text for chunk in chunks] == ["", "", "ö", ""]


def test_usage_in_every_chunk(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.completions.create(model=MODEL, prompt="x", stream=True, stream_options=options))
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 3]
    assert [chunk.usage.total_tokens for chunk in chunks] == [4, 5, 6, 6]


def test_of_a_list_of_ids_the_last_ones_are_kept(client: openai.OpenAI, server: Running) -> None:
    ids = list(range(3 * MAX_MODEL_LEN))
    fields = {"truncate_prompt_tokens": -1}
    client.completions.create(model=MODEL, prompt=ids, max_tokens=4, extra_body=fields)
    (request,) = server.service.generated
    assert request.prompt == ids[-MAX_MODEL_LEN:] and request.max_prompt_tokens == MAX_MODEL_LEN - 4
