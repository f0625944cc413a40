"""When a sequence ends, and what of its text is shown."""

import pytest

from engine.output.stopping import finish_or_continue
from engine.request import Arrival, Request, Resume
from engine.sampling_params import SamplingParams
from engine.scheduling.sequence import Sequence
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import EOS, TOKENIZER, VOCAB, Knobs, finish, make_engine


def say(text: str, output_ids: list[int] | None = None, **fields: object) -> tuple[list[str], Sequence]:
    """What is shown after each of the text's letters, a token each, until an end."""
    engine = make_engine(Knobs())
    resume = Resume(output_ids=[output_ids or []])
    params = SamplingParams(**({"max_tokens": 20} | fields))
    group = engine.admission.make_group(Arrival(Request("r", [1], params, resume=resume), [1]))
    (seq,) = group.seqs
    shown = []
    for letter in text:
        assert not seq.finished
        seq.token_ids += TOKENIZER.encode_word(letter)
        shown.append(finish_or_continue(group, seq, engine.processor.detokenizer))
    return shown, seq


@pytest.mark.parametrize(
    ("text", "fields", "shown", "reason"),
    [
        ("ABC", {"stop": ["BC"]}, ["A", "", ""], "BC"),
        ("ABC", {"stop": ["BC"], "include_stop_str_in_output": True}, ["A", "", "BC"], "BC"),
        ("ABC", {"stop": ["C", "BC"]}, ["A", "", ""], "BC"),  # the earliest in the text
        ("ABAB", {"stop": ["BC"]}, ["A", "", "BA", ""], None),  # held until it cannot be one
        ("AAA", {"stop": ["A"], "min_tokens": 2}, ["A", "A", ""], "A"),
        ("BA", {"stop_token_ids": TOKENIZER.encode_word("A")}, ["B", ""], TOKENIZER.encode_word("A")[0]),
    ],
)
def test_stop_strings_and_tokens(text: str, fields: dict[str, object], shown: list[str], reason: object) -> None:
    told, seq = say(text, **fields)
    assert told == shown
    assert (seq.finish_reason, seq.stop_reason) == (None if reason is None else "stop", reason)


def test_what_was_held_is_shown_when_the_length_is_reached() -> None:
    shown, seq = say("AB", stop=["BC"], max_tokens=2)
    assert (shown, seq.finish_reason) == (["A", "B"], "length")


def test_a_stop_string_may_begin_in_tokens_that_came_from_elsewhere() -> None:
    shown, seq = say("C", output_ids=TOKENIZER.encode_word("AB"), stop=["BC"])
    assert (shown, seq.stop_reason) == ([""], "BC")


def test_the_end_token_ends_and_is_not_shown_unless_wanted():
    for shown, include in (("", False), (TOKENIZER.decode([EOS]), True)):
        engine = make_engine(Knobs())
        for number in range(60):
            params = SamplingParams(seed=number, max_tokens=40, include_stop_str_in_output=include)
            add_request(engine, f"r{number}", [number % VOCAB], params)
        ended = [o.outputs[0] for o in finish(engine).values() if o.outputs[0].finish_reason == "stop"]
        assert len(ended) > 10
        for choice in ended:
            assert choice.token_ids[-1] == EOS and choice.stop_reason is None
            assert choice.text == TOKENIZER.decode(choice.token_ids[:-1]) + shown
