"""Which calls have a record of their stream, and how one is continued."""

from dataclasses import replace

import pytest

from cluster.api.requests.call import Call
from cluster.api.responses.resuming.recorded import as_recorded, has_one_choice, is_record_of, new_record, num_known
from cluster.api.responses.resuming.streams import StreamRecord
from engine.request import Adapter, Request
from engine.sampling_params import SamplingParams


def call(*, echo: bool = False, prompts: int = 1, digest: bytes = b"body", **params: object) -> Call:
    request = Request("id", "x", SamplingParams(**params))
    return Call(
        kind="cmpl",
        id="id",
        requests=(request,) * prompts,
        stream=True,
        include_usage=False,
        echo=echo,
        prompt_logprobs=False,
        digest=digest,
        created=5,
    )


@pytest.mark.parametrize("several", [call(n=2), call(best_of=2), call(prompts=2), call(beam_width=2, temperature=0)])
def test_several_choices_have_no_record(several: Call) -> None:
    assert has_one_choice(call()) and not has_one_choice(several)


def test_a_record_is_of_the_same_body_and_key_once_an_engine_has_answered() -> None:
    record = new_record(call(), "Bearer one")
    assert not is_record_of(record, call(), "Bearer one")  # no fingerprint yet: nothing was told
    record.fingerprint = "fp"
    assert is_record_of(record, call(), "Bearer one")
    assert not is_record_of(record, call(), "Bearer two")
    assert not is_record_of(record, call(digest=b"another"), "Bearer one")
    assert not is_record_of(record, replace(call(), kind="chatcmpl"), "Bearer one")


def test_the_call_is_continued_with_what_was_drawn_and_fixed() -> None:
    record = new_record(call(), "")
    assert record.seed is not None and new_record(call(seed=7), "").seed == 7
    record.max_tokens = 40
    again = as_recorded(replace(call(), created=9), "first", record)
    assert (again.id, again.requests[0].id, again.created) == ("first", "first", 5)
    assert (again.params.seed, again.params.max_tokens, again.requests[0].joins_deltas) == (record.seed, 40, False)


def test_a_stream_keeps_its_adapter_though_another_has_the_name_now() -> None:
    old, new = (
        replace(call(), requests=(replace(call().requests[0], adapter=Adapter("tone", "/tone", digest, 8)),))
        for digest in ("00", "11")
    )
    record = new_record(old, "")
    assert as_recorded(new, "first", record).requests == as_recorded(old, "first", record).requests


@pytest.mark.parametrize(("last", "num_tokens"), [(0, 0), (1, 1), (2, 1), (3, 3), (9, 3)])
def test_tokens_before_an_event_that_is_not_whole_are_computed_again(last: int, num_tokens: int) -> None:
    record = StreamRecord(b"", 5, 7, token_ids=[11, 12, 13, 14, 15], num_events=[0, 1, 1, 3, 3])
    assert num_known(call(), record, last) == num_tokens
    assert num_known(call(echo=True), record, last) == num_known(call(logprobs=1), record, last) == 0
    for more in ({"has_token_ids": True}, {"has_usage_so_far": True}, {"echoed": "It is"}):
        assert num_known(replace(call(), **more), record, last) == 0
