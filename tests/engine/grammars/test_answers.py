"""Whole answers of the demo checkpoint: of the form that was asked for, whatever else was."""

import json
from typing import Any

import jsonschema
import pytest

from engine.batch.packed import pack_set
from engine.core.llm_engine import LLMEngine
from engine.errors import NO_TOKEN_LEFT, TOKEN_TOO_COMPLEX, InvalidRequest
from engine.outputs import CompletionOutput, RequestOutput
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import check_request
from tests.engine.support.demo import answers, demo_engine, held_out_prompts
from tests.engine.support.workloads import TOKENIZER

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
EOS = 767
VOCAB = 768
A = TOKENIZER.encode_word("a")[0]
WITHOUT_B = [number for number, text in enumerate(TOKENIZER.token_bytes) if b"b" not in text]
PROMPT = held_out_prompts(1)[0]


@pytest.fixture(scope="module")
def engine() -> Any:
    with demo_engine(ops_backend="cpu", dtype="bfloat16") as engine:
        yield engine


def ask(engine: LLMEngine, form: dict[str, Any], **fields: Any) -> CompletionOutput:
    output = whole(engine, form, **fields)
    assert output.error is None
    return output.outputs[0]


def whole(engine: LLMEngine, form: dict[str, Any], **fields: Any) -> RequestOutput:
    params = SamplingParams(structured_outputs=form, **({"max_tokens": 150, "temperature": 1.5, "seed": 1} | fields))
    (output,) = answers(engine, [(PROMPT, params)])
    return output


def test_every_answer_is_of_the_schema(engine: LLMEngine) -> None:
    wishes = {"structured_outputs": {"json": SCHEMA}, "temperature": 1.5, "max_tokens": 200, "n": 2}
    asked = [(prompt, SamplingParams(**wishes, seed=seed)) for seed, prompt in enumerate(held_out_prompts(12))]
    outputs = [choice for output in answers(engine, asked) for choice in output.outputs]
    assert [choice.finish_reason for choice in outputs] == ["stop"] * 24
    for choice in outputs:
        jsonschema.validate(json.loads(choice.text), SCHEMA)
    assert len({choice.text for choice in outputs}) > 12


def test_an_answer_ends_when_nothing_can_follow_and_no_end_token_is_spent(engine: LLMEngine) -> None:
    choice = ask(engine, {"choice": ["yes", "no"]})
    assert choice.text in ("yes", "no")
    assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
    assert EOS not in choice.token_ids


def test_an_answer_that_may_go_on_ends_by_its_end_token(engine: LLMEngine) -> None:
    choice = ask(engine, {"regex": "[ab]{2}[cd]*"}, logit_bias={EOS: 100.0})
    assert len(choice.text) == 2  # the end is not allowed before, and then nothing else is likely
    assert (choice.token_ids[-1], choice.finish_reason) == (EOS, "stop")


def test_an_answer_may_be_cut_by_its_length_and_by_a_stop_string(engine: LLMEngine) -> None:
    assert ask(engine, {"json": SCHEMA}, max_tokens=5).finish_reason == "length"
    choice = ask(engine, {"json": SCHEMA}, stop=["age"])
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "age")
    assert choice.text.startswith("{") and "age" not in choice.text


@pytest.mark.parametrize("wish", [{"min_tokens": 8}, {"ignore_eos": True, "max_tokens": 8}])
def test_an_end_that_is_not_wanted_yet_comes_only_where_nothing_else_can(
    engine: LLMEngine, wish: dict[str, Any]
) -> None:
    longer = ask(engine, {"regex": "a[ab]*"}, logit_bias={EOS: 100.0}, **wish)
    assert len(longer.token_ids) - longer.token_ids.count(EOS) >= 8
    assert ask(engine, {"choice": ["yes", "no"]}, **wish).text in ("yes", "no")


def test_what_else_bans_tokens_leaves_those_that_both_allow(engine: LLMEngine) -> None:
    a, b, c = (TOKENIZER.encode_word(letter)[0] for letter in "abc")
    assert ask(engine, {"regex": "[abc]{3}"}, allowed_token_ids=[a, c], logit_bias={a: -100.0}).text == "ccc"
    assert ask(engine, {"regex": "[ab]{3}"}, bad_words=["b"]).text == "aaa"
    assert ask(engine, {"regex": "[ab]{3}"}, allowed_token_ids=WITHOUT_B).text == "aaa"
    assert ask(engine, {"regex": "[abc]{3}"}, logit_bias={b: 100.0}, frequency_penalty=0.1).text == "bbb"


@pytest.mark.parametrize("allowed", [[A], WITHOUT_B], ids=["one", "most"])
def test_a_request_that_leaves_no_token_fails_alone(engine: LLMEngine, allowed: list[int]) -> None:
    nothing = SamplingParams(structured_outputs={"regex": "ab"}, allowed_token_ids=allowed, max_tokens=4)
    plain = SamplingParams(max_tokens=4, temperature=0)
    failed, other = answers(engine, [(PROMPT, nothing), (PROMPT, plain)])
    assert failed.error is not None and "no token is left that both the structured output" in failed.error
    assert failed.error_code == NO_TOKEN_LEFT
    assert failed.outputs[0].text == "a"
    assert other.error is None and len(other.outputs[0].token_ids) > 0
    (again,) = answers(engine, [(PROMPT, plain)])
    assert again.num_cached_tokens > 0, "the blocks of a prompt are as good as before"


@pytest.mark.parametrize(
    ("wishes", "names"),
    [
        (
            {"structured_outputs": {"regex": "b+"}, "allowed_token_ids": [A]},
            ["allowed_token_ids", "structured_outputs.regex"],
        ),
        ({"structured_outputs": {"choice": ["a"]}, "bad_words": ["a"]}, ["bad_words", "structured_outputs.choice"]),
        ({"allowed_token_ids": [A], "bad_words": ["a"]}, ["allowed_token_ids", "bad_words"]),
    ],
)
def test_a_request_that_leaves_no_first_token_is_refused(
    engine: LLMEngine, wishes: dict[str, Any], names: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_request(engine, PROMPT, SamplingParams(**wishes))
    assert refused.value.message == f"{' and '.join(names)} exclude each other: no first token is left"
    assert (refused.value.param, refused.value.code) == (names[0], NO_TOKEN_LEFT)


def test_a_word_that_may_not_be_said_twice_ends_a_request_that_can_say_nothing_else(engine: LLMEngine) -> None:
    wishes = SamplingParams(allowed_token_ids=[A], bad_words=["aaa"], ignore_eos=True, max_tokens=9)
    (failed,) = answers(engine, [(PROMPT, wishes)])
    assert failed.error is not None and failed.error_code == NO_TOKEN_LEFT
    assert engine.recorder.measures.copy().num_corrupted == 0


def test_it_does_not_matter_whether_allowed_tokens_are_sent_as_ids_or_as_a_mask(engine: LLMEngine) -> None:
    few = WITHOUT_B[40:60]
    wishes = [
        SamplingParams(allowed_token_ids=ids, max_tokens=12, temperature=1.5, seed=3, ignore_eos=True)
        for ids in (few, few * 2)
    ]
    assert [len(pack_set(each, VOCAB).words) for each in wishes] == [0, VOCAB // 32]
    as_ids, as_mask = (output.outputs[0] for output in answers(engine, [(PROMPT, each) for each in wishes]))
    assert as_ids.token_ids == as_mask.token_ids
    assert set(as_ids.token_ids) <= set(few) and len(set(as_ids.token_ids)) > 1


def test_logprobs_are_the_models_own(engine: LLMEngine) -> None:
    choice = ask(engine, {"choice": ["yes"]}, temperature=0, logprobs=2)
    assert choice.logprobs is not None
    first = choice.logprobs[0]
    assert first[choice.token_ids[0]].rank > 1  # the model would have said something else
    assert len(first) == 3


def test_a_form_that_cannot_be_compiled_is_refused_when_it_arrives(engine: LLMEngine) -> None:
    with pytest.raises(InvalidRequest, match=r"structured_outputs\.regex cannot be compiled"):
        check_request(engine, PROMPT, SamplingParams(structured_outputs={"regex": "(a"}))


def test_a_token_after_which_too_much_may_follow_ends_the_answer_with_the_reason(engine: LLMEngine) -> None:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(700)}}
    for _ in range(2):  # the second has a grammar that was kept
        failed = whole(engine, {"json": schema}, temperature=0)
        assert "too much work at this token: Parser Error: Current row has" in str(failed.error)
        assert failed.error_code == TOKEN_TOO_COMPLEX
